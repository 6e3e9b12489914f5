"""Taking records out of the ring in order."""

import pytest
from tests.ring_records import store_at, store_steps

from meshscope.probe.recording.ring import RingDrain, RingWriter


@pytest.fixture
def ring(tmp_path):
    """Return a ring of 64 slots."""
    return RingWriter(tmp_path, rank=0, slot_count=64)


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
        store_steps(ring, count)
        seqs += drain_all(drain)
    assert seqs == list(range(1, 158))
    assert drain.take_losses() == {}


def test_lapped_drain_counts_what_it_lost(ring):
    """Fails when records that were overwritten before the drain came vanish uncounted."""
    drain = RingDrain(ring)
    store_steps(ring, 200)
    seqs = drain_all(drain)
    lost = drain.take_losses()["ring_overwritten_dropped"]
    assert seqs == list(range(lost + 1, 201))
    assert 200 - 64 <= lost < 200
    assert drain.take_losses() == {}


def test_unfinished_record_delays_but_never_blocks(ring):
    """Fails when a writer that was interrupted stops the drain for good."""
    drain = RingDrain(ring)
    store_steps(ring, 3)
    next(ring.places)
    store_steps(ring, 3)
    assert drain_all(drain) == [1, 2, 3]
    assert drain_all(drain) == [5, 6, 7]
    assert drain.take_losses() == {"unfinished_dropped": 1}


def test_late_record_is_not_lost(ring):
    """Fails when a slow writer's record is given up at the first look."""
    drain = RingDrain(ring)
    late = next(ring.places)
    store_steps(ring, 2)
    assert drain_all(drain) == []
    store_at(ring, *late)
    assert drain_all(drain) == [1, 2, 3]


def test_final_drain_does_not_wait(ring):
    """Fails when closing leaves records behind an unfinished one in the ring."""
    drain = RingDrain(ring)
    next(ring.places)
    store_steps(ring, 2)
    assert drain_all(drain, final=True) == [2, 3]


@pytest.mark.parametrize(
    ("stored", "asked", "answer"), [(0, 1, False), (5, 5, True), (5, 6, False)]
)
def test_has_tells_whether_enough_waits(ring, stored, asked, answer):
    """Fails when the writer wakes for too little or sleeps over a full batch."""
    drain = RingDrain(ring)
    store_steps(ring, stored)
    assert drain.has(asked) is answer
