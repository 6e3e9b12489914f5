"""The writing half of the ring."""

import os
from struct import Struct

import pytest

from meshscope.probe.ring import RingWriter
from meshscope.probe.schema.records import STEP_RECORD
from meshscope.probe.schema.ring import BODY_OFFSET, HEADER_BYTES, SLOT_BYTES, read_ring

PACK_STEP = Struct(STEP_RECORD.struct_format).pack


def commit_step(ring: RingWriter, step: int) -> int:
    """Store one step record and return its sequence number."""
    seq = ring.take()
    ring.commit(seq, PACK_STEP(STEP_RECORD.code, seq, step, 10, 20, 30, 2))
    return seq


@pytest.fixture
def ring(tmp_path):
    """Return a ring of 64 slots for rank 5."""
    return RingWriter(tmp_path, rank=5, slot_count=64)


def test_committed_records_are_in_the_file_at_once(ring, tmp_path):
    """Fails when a record is not in the file before the process could be killed."""
    for step in range(3):
        commit_step(ring, step)
    found = read_ring(tmp_path / "ring.bin")
    assert found.records["step"]["step"].tolist() == [0, 1, 2]
    assert (found.header.rank, found.header.pid, found.header.slot_count) == (5, os.getpid(), 64)
    assert (found.damaged, found.uncommitted, found.missing_slots) == ((), 0, 0)


def test_newest_records_stay_when_the_ring_laps(ring, tmp_path):
    """Fails when an overwritten slot shows anything but its newest record."""
    for step in range(150):
        commit_step(ring, step)
    found = read_ring(tmp_path / "ring.bin")
    assert sorted(found.records["step"]["step"].tolist()) == list(range(86, 150))
    assert found.damaged == ()


def test_half_written_record_is_torn_and_not_damaged(ring, tmp_path):
    """Fails when a record whose writer was killed counts as corruption of the file."""
    for step in range(100):
        commit_step(ring, step)
    seq = ring.take()
    body = PACK_STEP(STEP_RECORD.code, seq, 100, 10, 20, 30, 2)
    start = seq % 64 * SLOT_BYTES + BODY_OFFSET
    ring.slots[start : start + 20] = body[:20]
    found = read_ring(tmp_path / "ring.bin")
    assert (found.uncommitted, found.damaged) == (1, ())
    assert sorted(found.records["step"]["step"].tolist()) == list(range(37, 100))


def test_detached_ring_leaves_the_file_alone(ring, tmp_path):
    """Fails when a forked child or a closed recorder still writes into the ring file."""
    commit_step(ring, 0)
    before = (tmp_path / "ring.bin").read_bytes()
    ring.detach()
    for step in range(1, 200):
        commit_step(ring, step)
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
