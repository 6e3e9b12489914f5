"""Directories of a rank that records more than once."""

import os

import pytest

from meshscope.probe.recording.parts import MOST_PARTS, new_part
from meshscope.probe.schema.ring import RING_NAME


def record(run, rank=0, size=100, most_bytes=10_000):
    """Begin a part and leave something in it; return its name and how many were deleted."""
    path, deleted = new_part(run, rank, most_bytes)
    (path / RING_NAME).write_bytes(bytes(size))
    return path.name, deleted


def test_parts_are_numbered_by_rank(tmp_path):
    """Fails when a part takes the place of another one."""
    names = [record(tmp_path)[0] for _ in range(3)]
    assert names == ["rank00000", "rank00000.2", "rank00000.3"]
    assert record(tmp_path, 1)[0] == "rank00001"
    assert (tmp_path / "rank00000").stat().st_mode & 0o777 == 0o700


def test_a_part_without_records_is_used_again(tmp_path):
    """Fails when a start that failed for want of room leaves an empty part each time."""
    record(tmp_path)
    assert new_part(tmp_path, 0, 10_000) == new_part(tmp_path, 0, 10_000)


def test_the_first_and_the_newest_that_fit_are_kept(tmp_path):
    """Fails when a job that restarts over and over fills the disk, or loses how it began."""
    deleted = [record(tmp_path, size=3000)[1] for _ in range(6)]
    assert deleted == [0, 0, 0, 0, 1, 1]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["rank00000", "rank00000.4", "rank00000.5", "rank00000.6"]


def test_the_number_of_parts_is_bounded(tmp_path):
    """Fails when many short parts make the run slow to read."""
    for _ in range(MOST_PARTS + 5):
        record(tmp_path, size=1)
    assert len(list(tmp_path.iterdir())) == MOST_PARTS
    assert (tmp_path / "rank00000").exists()


def test_a_linked_place_is_not_written_through(tmp_path):
    """Fails when records go where a symbolic link in the run directory leads."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank00000").symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a symbolic link"):
        new_part(run, 0, 10_000)
    (tmp_path / "linked").symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a symbolic link"):
        new_part(tmp_path / "linked", 0, 10_000)
    assert not list(elsewhere.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_not_written(tmp_path):
    """Fails when the owner of a directory can steer where we write."""
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, 65534, -1)
    with pytest.raises(PermissionError, match="belongs to user 65534"):
        new_part(run, 0, 10_000)
    assert not list(run.iterdir())
