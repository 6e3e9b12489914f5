"""Following a ring from outside, while its owner writes on."""

import pytest
from tests.ring_records import store_steps

from meshscope.probe.agent.ring_tail import RingTail
from meshscope.probe.recording.ring import RingWriter
from meshscope.probe.schema.errors import SegmentError
from meshscope.probe.schema.ring import COMMIT_OFFSET, HEADER_BYTES, SLOT_BYTES

STEPS = frozenset({"step"})


@pytest.fixture
def ring(tmp_path):
    """Return a ring of 1024 slots."""
    writer = RingWriter(tmp_path, rank=0, slot_count=1024)
    yield writer
    writer.detach()


def steps_of(tail):
    """Return the steps that are new."""
    return [int(step) for rows in tail.new_records(STEPS).get("step", []) for step in rows["step"]]


def test_each_record_is_seen_once(tmp_path, ring):
    """Fails when a record is seen twice, not at all, or in another order."""
    store_steps(ring, 3)
    tail = RingTail(tmp_path / "ring.bin")
    assert steps_of(tail) == [1, 2, 3]
    assert steps_of(tail) == []
    store_steps(ring, 700)
    assert steps_of(tail) == list(range(4, 704))
    store_steps(ring, 600)
    assert steps_of(tail) == list(range(704, 1304))
    assert (tail.skipped, tail.last_seq) == (0, 1303)
    tail.close()


def test_a_writer_that_laps_the_reader_leaves_a_gap(tmp_path, ring):
    """Fails when overwritten records are made up, or the reader never catches up."""
    store_steps(ring, 10)
    tail = RingTail(tmp_path / "ring.bin")
    assert steps_of(tail)[-1] == 10
    store_steps(ring, 3000)
    found = steps_of(tail)
    assert found[-1] == 3010
    assert found == list(range(found[0], 3011))
    assert tail.skipped == found[0] - 11
    tail.close()


@pytest.mark.parametrize("byte", [0, 7, 8, COMMIT_OFFSET, COMMIT_OFFSET + 7])
def test_a_damaged_record_is_left_out(tmp_path, ring, flip_byte, byte):
    """Fails when a flipped number or type becomes a step, or sends the reader far ahead."""
    store_steps(ring, 3)
    flip_byte(tmp_path / "ring.bin", HEADER_BYTES + 2 * SLOT_BYTES + byte)
    tail = RingTail(tmp_path / "ring.bin")
    assert steps_of(tail) + steps_of(tail) == [1, 3]
    tail.close()


def test_a_record_that_was_never_finished_is_passed_over(tmp_path, ring):
    """Fails when a thread that died in the middle of a record stops the live figures."""
    store_steps(ring, 2)
    tail = RingTail(tmp_path / "ring.bin")
    next(ring.places)
    store_steps(ring, 2)
    assert steps_of(tail) == [1, 2]
    assert steps_of(tail) == [4, 5]
    assert tail.skipped == 1
    tail.close()


def test_a_file_that_is_cut_short_ends_nothing(tmp_path, ring):
    """Fails when a ring that somebody cuts kills the agent, as a mapping would."""
    store_steps(ring, 5)
    tail = RingTail(tmp_path / "ring.bin")
    steps_of(tail)
    with open(tmp_path / "ring.bin", "r+b") as file:
        file.truncate(HEADER_BYTES)
    assert steps_of(tail) == []
    tail.close()


def test_what_is_no_ring_is_refused(tmp_path):
    """Fails when another file is followed."""
    (tmp_path / "ring.bin").write_bytes(b"x" * 5000)
    with pytest.raises(SegmentError, match="not a ring"):
        RingTail(tmp_path / "ring.bin")
