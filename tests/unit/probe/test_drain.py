"""Taking records out of the ring in order."""

from struct import Struct

import pytest

from meshscope.probe.drain import RingDrain
from meshscope.probe.ring import RingWriter
from meshscope.probe.schema.records import STEP_RECORD

PACK_STEP = Struct(STEP_RECORD.struct_format).pack


@pytest.fixture
def ring(tmp_path):
    """Return a ring of 64 slots."""
    return RingWriter(tmp_path, rank=0, slot_count=64)


def fill(ring: RingWriter, count: int) -> None:
    """Store step records."""
    for _ in range(count):
        seq = ring.take()
        ring.commit(seq, PACK_STEP(STEP_RECORD.code, seq, seq, 1, 2, 3, 2))


def drain_all(drain: RingDrain, *, final: bool = False) -> list[int]:
    """Return the sequence numbers of all records that the drain gives."""
    seqs: list[int] = []
    while (slots := drain.collect(final=final)) is not None:
        seqs += slots["slot_seq"].tolist()
    return seqs


def test_each_record_comes_once_and_in_order(ring):
    """Fails when draining repeats, skips or reorders records over several laps."""
    drain = RingDrain(ring)
    seqs = []
    for count in (10, 50, 64, 0, 33):
        fill(ring, count)
        seqs += drain_all(drain)
    assert seqs == list(range(157))
    assert drain.take_losses() == {}


def test_lapped_drain_counts_what_it_lost(ring):
    """Fails when records that were overwritten before the drain came vanish uncounted."""
    drain = RingDrain(ring)
    fill(ring, 200)
    seqs = drain_all(drain)
    lost = drain.take_losses()["ring_overwritten_dropped"]
    assert seqs == list(range(lost, 200))
    assert 200 - 64 <= lost < 200
    assert drain.take_losses() == {}


def test_unfinished_record_delays_but_never_blocks(ring):
    """Fails when a writer that was interrupted stops the drain for good."""
    drain = RingDrain(ring)
    fill(ring, 3)
    ring.take()
    fill(ring, 3)
    assert drain_all(drain) == [0, 1, 2]
    assert drain_all(drain) == [4, 5, 6]
    assert drain.take_losses() == {"unfinished_dropped": 1}


def test_late_record_is_not_lost(ring):
    """Fails when a slow writer's record is given up at the first look."""
    drain = RingDrain(ring)
    late = ring.take()
    fill(ring, 2)
    assert drain_all(drain) == []
    ring.commit(late, PACK_STEP(STEP_RECORD.code, late, late, 1, 2, 3, 2))
    assert drain_all(drain) == [0, 1, 2]


def test_final_drain_does_not_wait(ring):
    """Fails when closing leaves records behind an unfinished one in the ring."""
    drain = RingDrain(ring)
    ring.take()
    fill(ring, 2)
    assert drain_all(drain, final=True) == [1, 2]


@pytest.mark.parametrize(
    ("stored", "asked", "answer"), [(0, 1, False), (5, 5, True), (5, 6, False)]
)
def test_has_tells_whether_enough_waits(ring, stored, asked, answer):
    """Fails when the writer wakes for too little or sleeps over a full batch."""
    drain = RingDrain(ring)
    fill(ring, stored)
    assert drain.has(asked) is answer
