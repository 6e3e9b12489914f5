"""Ranks that come to a run are noticed once, and cheaply."""

import os

import pytest

from meshscope.probe.job import lifetimes
from meshscope.probe.job.lifetimes import NewParts, Part

HOUR_NS = 3600 * 10**9


@pytest.fixture
def lists(monkeypatch):
    """Return a list that grows with every listing of a directory."""
    found = []
    scandir = os.scandir

    def counted(path):
        found.append(path)
        return scandir(path)

    monkeypatch.setattr(lifetimes.os, "scandir", counted)
    return found


def stamp(path, time_ns):
    """Set the modification time of a directory."""
    os.utime(path, ns=(time_ns, time_ns))


def test_a_part_is_reported_of_once(tmp_path):
    """Fails if a rank is looked at again and again, or is never seen."""
    (tmp_path / "rank00003").mkdir()
    (tmp_path / "host-a").mkdir()
    (tmp_path / "rank00004").touch()
    new = NewParts(tmp_path)
    assert new.take() == [Part(3, 1, tmp_path / "rank00003")]
    assert new.take() == []
    (tmp_path / "rank00003.2").mkdir()
    (tmp_path / "rank00001").mkdir()
    assert new.take() == [
        Part(1, 1, tmp_path / "rank00001"),
        Part(3, 2, tmp_path / "rank00003.2"),
    ]


def test_a_run_that_does_not_change_is_not_listed(tmp_path, lists):
    """Fails if every node lists the directories of all ranks several times a second."""
    (tmp_path / "rank00000").mkdir()
    stamp(tmp_path, HOUR_NS)
    new = NewParts(tmp_path)
    for _ in range(50):
        new.take()
    assert len(lists) == 1
    (tmp_path / "rank00001").mkdir()
    assert len(new.take()) == 1
    assert len(lists) == 2


def test_a_change_just_before_a_listing_is_not_taken_for_the_listed_one(tmp_path, lists):
    """Fails if a rank that comes within the coarseness of time stamps is never seen."""
    new = NewParts(tmp_path)
    assert new.take() == []
    before_ns = tmp_path.stat().st_mtime_ns
    (tmp_path / "rank00000").mkdir()
    stamp(tmp_path, before_ns)
    assert len(new.take()) == 1


def test_a_file_system_that_stamps_no_directories_is_listed_now_and_then(tmp_path, monkeypatch):
    """Fails if ranks are not seen where a directory keeps its time."""
    stamp(tmp_path, HOUR_NS)
    new = NewParts(tmp_path)
    assert new.take() == []
    (tmp_path / "rank00000").mkdir()
    stamp(tmp_path, HOUR_NS)
    assert new.take() == []
    later_ns = lifetimes.now_ns() + lifetimes._RELIST_NS
    monkeypatch.setattr(lifetimes, "now_ns", lambda: later_ns)
    assert len(new.take()) == 1
