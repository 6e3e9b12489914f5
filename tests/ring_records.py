"""Records stored straight into a ring, without a recorder."""

from struct import Struct

from meshscope.probe.recording.record_heads import STEP_HEADS
from meshscope.probe.recording.ring import RingWriter
from meshscope.probe.schema.records import STEP_RECORD
from meshscope.probe.schema.ring import slot_format

_STORE = Struct(slot_format(STEP_RECORD)).pack_into


def store_steps(ring: RingWriter, count: int) -> list[int]:
    """Store step records whose step is their sequence number; return the numbers."""
    return [store_at(ring, *next(ring.places)) for _ in range(count)]


def store_at(ring: RingWriter, seq: int, place: int) -> int:
    """Store a step record in a place that was taken; return its number."""
    _STORE(ring.slots, place, seq, STEP_HEADS[2], seq, 10, 20, 30, seq)
    return seq


def packed_step(seq: int) -> bytes:
    """Return a slot with a step record, as ``store_at`` leaves it."""
    slot = bytearray(Struct(slot_format(STEP_RECORD)).size)
    _STORE(slot, 0, seq, STEP_HEADS[2], seq, 10, 20, 30, seq)
    return bytes(slot)
