"""Directories of a rank that records more than once."""

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
