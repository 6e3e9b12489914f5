"""The writing half of the ring."""

import os

import pytest
from tests.ring_records import packed_step, store_steps

from meshscope.probe.recording.ring import RingWriter
from meshscope.probe.schema.ring import COMMIT_OFFSET, HEADER_BYTES, SLOT_BYTES, read_ring


@pytest.fixture
def ring(tmp_path):
    """Return a ring of 64 slots for rank 5."""
    return RingWriter(tmp_path, rank=5, slot_count=64)


def test_committed_records_are_in_the_file_at_once(ring, tmp_path):
    """Fails when a record is not in the file before the process could be killed."""
    store_steps(ring, 3)
    found = read_ring(tmp_path / "ring.bin")
    assert found.records["step"]["step"].tolist() == [1, 2, 3]
    assert (found.header.rank, found.header.pid, found.header.slot_count) == (5, os.getpid(), 64)
    assert (found.damaged, found.uncommitted, found.missing_slots) == ((), 0, 0)


def test_newest_records_stay_when_the_ring_laps(ring, tmp_path):
    """Fails when an overwritten slot shows anything but its newest record."""
    store_steps(ring, 150)
    found = read_ring(tmp_path / "ring.bin")
    assert sorted(found.records["step"]["step"].tolist()) == list(range(87, 151))
    assert found.damaged == ()


@pytest.mark.parametrize("cleared", [False, True], ids=["over-the-old", "cleared-first"])
@pytest.mark.parametrize("written", [8, 20, 40, COMMIT_OFFSET])
def test_half_written_record_is_torn_and_not_damaged(ring, tmp_path, written, cleared):
    """Fails when a record whose writer was killed is read, or counts as corruption of the file."""
    store_steps(ring, 100)
    seq, start = next(ring.places)
    if cleared:
        ring.slots[start : start + SLOT_BYTES] = bytes(SLOT_BYTES)
    ring.slots[start : start + written] = packed_step(seq)[:written]
    found = read_ring(tmp_path / "ring.bin")
    if not (cleared and written == 8):  # Nothing but a number is in it: an empty slot.
        assert (found.uncommitted, found.damaged) == (1, ())
    assert sorted(found.records["step"]["step"].tolist()) == list(range(38, 101))


def test_first_record_is_torn_too(ring, tmp_path):
    """Fails when the first record of a ring, with zeros behind it, passes for a whole one."""
    seq, start = next(ring.places)
    ring.slots[start : start + 60] = packed_step(seq)[:60]
    found = read_ring(tmp_path / "ring.bin")
    assert (found.records, found.uncommitted, found.damaged) == ({}, 1, ())


def test_detached_ring_leaves_the_file_alone(ring, tmp_path):
    """Fails when a forked child or a closed recorder still writes into the ring file."""
    store_steps(ring, 1)
    before = (tmp_path / "ring.bin").read_bytes()
    ring.detach()
    store_steps(ring, 200)
    assert (tmp_path / "ring.bin").read_bytes() == before


def test_file_is_private_reserved_and_never_reused(ring, tmp_path):
    """Fails when the ring is readable by others, sparse, or written over an older one."""
    status = (tmp_path / "ring.bin").stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_blocks * 512 >= HEADER_BYTES + 64 * SLOT_BYTES
    with pytest.raises(FileExistsError):
        RingWriter(tmp_path, rank=5, slot_count=64)
    assert (tmp_path / "ring.bin").exists()


def test_planted_link_is_not_followed(tmp_path):
    """Fails when a symbolic link in the run directory redirects the ring to another file."""
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (tmp_path / "ring.bin").symlink_to(victim)
    with pytest.raises(OSError, match="exists"):
        RingWriter(tmp_path, rank=0, slot_count=64)
    assert victim.read_text() == "keep"
