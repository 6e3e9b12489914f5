"""Segments one after the other: rotation, bounds, a disk that is full."""

import os

import pytest

from meshscope.probe.recording import segment_series
from meshscope.probe.recording.segment_series import SegmentSeries, SeriesBounds
from meshscope.probe.schema.segment import read_segment, segment_paths

ROOMY = {"segment_bytes": 1000, "segment_s": 3600.0, "max_bytes": 1 << 20, "free_floor_frac": 0.0}


@pytest.fixture
def counted():
    """Return the counters that series add to."""
    return {}


@pytest.fixture
def open_series(tmp_path, counted):
    """Return a function that opens a series in the same directory."""

    def count(name, amount):
        counted[name] = counted.get(name, 0) + amount

    return lambda **bounds: SegmentSeries(tmp_path, None, SeriesBounds(**ROOMY | bounds), count)


def test_a_full_segment_is_closed_and_the_next_goes_on(tmp_path, open_series):
    """Fails when segments grow without bound, or a reader finds them open."""
    series = open_series()
    for _ in range(4):
        assert series.append(b"x" * 600, 1)
    series.close()
    found = [read_segment(path) for path in segment_paths(tmp_path).values()]
    assert [len(contents.payloads) for contents in found] == [2, 2]
    assert all(contents.closed and not contents.problems for contents in found)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


def test_an_old_segment_is_closed(open_series, monkeypatch):
    """Fails when a quiet host keeps one segment open for days."""
    series = open_series(segment_s=10.0)
    now = [0]
    monkeypatch.setattr(segment_series, "now_ns", lambda: now[0])
    series.append(b"a", 1)
    now[0] = 11_000_000_000
    series.append(b"b", 1)
    assert series._segment is None


def test_an_old_segment_that_gets_no_more_is_closed(tmp_path, open_series, monkeypatch):
    """Fails when what a rank recorded last waits for its next record to be whole on disk."""
    series = open_series(segment_s=10.0)
    now = [0]
    monkeypatch.setattr(segment_series, "now_ns", lambda: now[0])
    series.append(b"a", 1)
    series.rotate()
    assert not read_segment(segment_paths(tmp_path)[1]).closed
    now[0] = 11_000_000_000
    series.rotate()
    assert read_segment(segment_paths(tmp_path)[1]).closed


def test_the_bound_drops_the_oldest_but_the_first(tmp_path, open_series, counted):
    """Fails when a long run fills the disk, or forgets how it began."""
    series = open_series(max_bytes=5000)
    for _ in range(8):
        series.append(b"x" * 1000, 5)
    assert list(segment_paths(tmp_path)) == [1, 7, 8]
    assert counted == {"segments_dropped": 5, "segment_records_dropped": 25}


def test_a_later_series_goes_on_after_the_first(tmp_path, open_series):
    """Fails when an agent that comes back writes over what the one before left."""
    first = open_series()
    first.append(b"old", 1)
    second = open_series()
    second.append(b"new", 1)
    second.close()
    found = {n: read_segment(p) for n, p in segment_paths(tmp_path).items()}
    assert {n: c.payloads for n, c in found.items()} == {1: [b"old"], 2: [b"new"]}


def test_nothing_is_written_below_the_floor_of_free_space(tmp_path, open_series, counted):
    """Fails when the capture takes the last blocks of a disk that training needs."""
    series = open_series(free_floor_frac=1.1)
    assert not series.append(b"x", 3)
    assert counted == {"disk_floor_dropped": 3}
    assert segment_paths(tmp_path) == {}


def test_a_write_that_fails_is_counted_and_later_ones_go_on(
    tmp_path, open_series, counted, monkeypatch
):
    """Fails when a full disk raises into the agent, or a torn block spoils those after it."""
    series = open_series()
    series.append(b"good", 1)
    with monkeypatch.context() as broken:

        def full(descriptor, content):
            raise OSError(28, "No space left on device")

        broken.setattr(os, "write", full)
        assert not series.append(b"lost", 2)
        assert not series.append(b"lost", 2)
    assert series.append(b"later", 1)
    series.close()
    assert counted == {"segment_write_errors": 2, "segment_write_dropped": 4}
    payloads = [p for path in segment_paths(tmp_path).values() for p in read_segment(path).payloads]
    assert payloads == [b"good", b"later"]
