"""Following a ring from outside, while its owner writes on."""

import struct

import pytest

from meshscope.probe.agent.ring_tail import RingTail
from meshscope.probe.ring import RingWriter
from meshscope.probe.schema.errors import SegmentError
from meshscope.probe.schema.records import STEP_RECORD
from meshscope.probe.schema.ring import BODY_OFFSET, HEADER_BYTES, SLOT_BYTES

STEPS = frozenset({"step"})
_PACK = struct.Struct(STEP_RECORD.struct_format)


@pytest.fixture
def ring(tmp_path):
    """Return a ring of 1024 slots."""
    writer = RingWriter(tmp_path, rank=0, slot_count=1024)
    yield writer
    writer.detach()


def record(ring, count):
    """Store so many step records; the step is the sequence number."""
    for _ in range(count):
        seq = ring.take()
        values = {"slot_seq": seq, "step": seq, "start_ns": 10, "dur_ns": 5, "tokens": -1}
        fields = [values.get(name, 0) for name, _ in STEP_RECORD.fields]
        ring.commit(seq, _PACK.pack(STEP_RECORD.code, *fields))


def steps_of(tail):
    """Return the steps that are new."""
    return [int(step) for rows in tail.new_records(STEPS).get("step", []) for step in rows["step"]]


def test_each_record_is_seen_once(tmp_path, ring):
    """Fails when a record is seen twice, not at all, or in another order."""
    record(ring, 3)
    tail = RingTail(tmp_path / "ring.bin")
    assert steps_of(tail) == [0, 1, 2]
    assert steps_of(tail) == []
    record(ring, 700)
    assert steps_of(tail) == list(range(3, 703))
    record(ring, 600)
    assert steps_of(tail) == list(range(703, 1303))
    assert (tail.skipped, tail.last_seq) == (0, 1302)
    tail.close()


def test_a_writer_that_laps_the_reader_leaves_a_gap(tmp_path, ring):
    """Fails when overwritten records are made up, or the reader never catches up."""
    record(ring, 10)
    tail = RingTail(tmp_path / "ring.bin")
    assert steps_of(tail)[-1] == 9
    record(ring, 3000)
    found = steps_of(tail)
    assert found[-1] == 3009
    assert found == list(range(found[0], 3010))
    assert tail.skipped == found[0] - 10
    tail.close()


def test_a_damaged_record_is_left_out(tmp_path, ring, flip_byte):
    """Fails when flipped bits become a step time."""
    record(ring, 3)
    flip_byte(tmp_path / "ring.bin", HEADER_BYTES + SLOT_BYTES + BODY_OFFSET + 20)
    tail = RingTail(tmp_path / "ring.bin")
    assert steps_of(tail) == [0, 2]
    tail.close()


def test_a_record_that_was_never_finished_is_passed_over(tmp_path, ring):
    """Fails when a thread that died in the middle of a record stops the live figures."""
    record(ring, 2)
    tail = RingTail(tmp_path / "ring.bin")
    ring.take()
    record(ring, 2)
    assert steps_of(tail) == [0, 1]
    assert steps_of(tail) == [3, 4]
    assert tail.skipped == 1
    tail.close()


def test_a_file_that_is_cut_short_ends_nothing(tmp_path, ring):
    """Fails when a ring that somebody cuts kills the agent, as a mapping would."""
    record(ring, 5)
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
