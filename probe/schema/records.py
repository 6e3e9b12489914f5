"""The records of a capture: fixed binary forms, each of which fits one ring slot.

All numbers are little-endian; where they lie in a slot is reported in ``schema.ring``.
Each record has a slot sequence number, which is unique within the rank and
serves as event id. Words of a closed vocabulary are stored as their position
in the enum (``probe.schema.terms``), names as indices into the rank manifest,
and ``-1`` stands for a value that is not known.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from .terms import CaptureLevel, CollectiveKind, Direction, MemoryPhase, SpanKind

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

UNKNOWN = -1
"""A time, size or count that the writer did not know."""

HEAD_BYTES = 16
"""Room for the code of a record and the values that it shares with its like."""

_Word = TypeVar("_Word", bound=StrEnum)

ARROW_TYPES = {"B": "uint8", "h": "int16", "i": "int32", "q": "int64"}
"""The Arrow type of a column by the struct format character of its values."""


@dataclass(frozen=True, slots=True)
class RecordType:
    """One kind of record and its binary form."""

    code: int
    """First byte of the head. Any two differ in two bits, so no flipped bit makes another."""
    name: str
    fields: tuple[tuple[str, str], ...]
    """Name and struct format character of its values."""
    head: tuple[str, ...] = ()
    """Fields that many records share: they are packed once, behind the code."""

    @property
    def head_fields(self) -> tuple[tuple[str, str], ...]:
        """Return the fields of the head in their order."""
        return tuple(field for field in self.fields if field[0] in self.head)

    @property
    def tail_fields(self) -> tuple[tuple[str, str], ...]:
        """Return the fields behind the head; the sequence number is before it."""
        return tuple(
            field for field in self.fields if field[0] not in self.head and field[0] != "slot_seq"
        )

    def pack_head(self, *values: int) -> bytes:
        """Return a head.

        Raises:
            struct.error: A value is no integer, too large, or one is missing.
        """
        form = "<B" + "".join(form for _, form in self.head_fields)
        return struct.pack(form, self.code, *values).ljust(HEAD_BYTES, b"\0")

    def numpy_dtype(self) -> np.dtype[np.void]:
        """Return the same form for numpy."""
        import numpy as np

        forms = {"B": "u1", "h": "<i2", "i": "<i4", "q": "<i8"}
        return np.dtype([("code", "u1"), *((name, forms[form]) for name, form in self.fields)])

    def arrow_schema(self) -> pa.Schema:
        """Return the columns of this record in a segment, with its name as metadata."""
        import pyarrow as pa

        fields = [(name, pa.type_for_alias(ARROW_TYPES[form])) for name, form in self.fields]
        return pa.schema(fields, metadata=self.arrow_metadata())

    def arrow_metadata(self) -> dict[bytes, bytes]:
        """Return what names this record in an Arrow schema."""
        return {b"meshscope.record": self.name.encode()}


MEMORY_VALUES = (
    "allocated_bytes",
    "reserved_bytes",
    "peak_bytes",
    "rss_bytes",
    "capacity_bytes",
    "parameters_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "other_bytes",
)
"""The byte columns of a memory record, in their binary order."""

STEP_RECORD = RecordType(
    3,
    "step",
    (
        ("slot_seq", "q"),
        ("step", "q"),
        ("start_ns", "q"),
        ("dur_ns", "q"),
        ("tokens", "q"),
        ("level", "B"),
    ),
    head=("level",),
)

SPAN_RECORD = RecordType(
    5,
    "span",
    (
        ("slot_seq", "q"),
        ("step", "q"),
        ("start_ns", "q"),
        ("dur_ns", "q"),
        ("cpu_ns", "q"),
        ("stage", "i"),
        ("chunk", "i"),
        ("microbatch", "i"),
        ("kind", "B"),
    ),
    head=("stage", "chunk", "kind"),
)

ROOT_MARK = "@"
"""Between the name of an element type and the global rank of the root, in the name that a rooted collective has."""

COLLECTIVE_RECORD = RecordType(
    6,
    "collective",
    (
        ("slot_seq", "q"),
        ("step", "q"),
        ("seq", "q"),
        ("size_bytes", "q"),
        ("issue_ns", "q"),
        ("group", "i"),
        ("dtype", "h"),
        ("kind", "B"),
    ),
    head=("group", "dtype", "kind"),
)

P2P_RECORD = RecordType(
    9,
    "p2p",
    (
        ("slot_seq", "q"),
        ("step", "q"),
        ("seq", "q"),
        ("size_bytes", "q"),
        ("issue_ns", "q"),
        ("group", "i"),
        ("peer", "i"),
        ("microbatch", "i"),
        ("chunk", "i"),
        ("dtype", "h"),
        ("direction", "B"),
    ),
    head=("group", "peer", "dtype", "direction"),
)

COMPLETION_RECORD = RecordType(
    10,
    "completion",
    (
        ("slot_seq", "q"),
        ("event_id", "q"),
        ("end_ns", "q"),
        ("wait_start_ns", "q"),
        ("wait_end_ns", "q"),
    ),
)

MEMORY_RECORD = RecordType(
    12,
    "memory",
    (
        ("slot_seq", "q"),
        ("step", "q"),
        ("time_ns", "q"),
        *((name, "q") for name in MEMORY_VALUES),
        ("stage", "i"),
        ("phase", "B"),
    ),
    head=("stage", "phase"),
)

COMMUNICATION_SUM_RECORD = RecordType(
    17,
    "communication_sum",
    (
        ("slot_seq", "q"),
        ("step", "q"),
        ("size_bytes", "q"),
        ("dur_ns", "q"),
        ("min_dur_ns", "q"),
        ("max_dur_ns", "q"),
        ("wait_ns", "q"),
        ("min_wait_ns", "q"),
        ("max_wait_ns", "q"),
        ("group", "i"),
        ("peer", "i"),
        ("count", "i"),
        ("ended", "i"),
        ("waited", "i"),
        ("size_log2", "h"),
        ("operation", "B"),
        ("within", "B"),
    ),
)
"""Made by the writer, never in a ring: what like operations of a step took together.

``slot_seq`` is the least of their event ids. ``operation`` is a position in
CollectiveKind, or its length plus one in Direction; ``within`` the position in
SpanKind of the compute span in which the host waited, ``NO_WORD`` if in none.
"""

DRAINED_RECORD = RecordType(18, "drained", (("slot_seq", "q"), ("end_seq", "q"), ("kept_out", "q")))
"""Made by the writer: of the sequence numbers from ``slot_seq`` to before ``end_seq``,
``kept_out`` records are in sums and not here themselves."""

DEVICE_TIME_RECORD = RecordType(
    15,
    "device_time",
    (("slot_seq", "q"), ("event_id", "q"), ("start_ns", "q"), ("dur_ns", "q")),
)
"""When the device ran what a span or an operation launched; ``start_ns`` -1 is unknown."""

MICROBATCH_RECORD = RecordType(
    20,
    "microbatch",
    (("slot_seq", "q"), ("step", "q"), ("tokens", "q"), ("sum_sq", "q"), ("microbatch", "i")),
)
"""What the training code says of the sequences of a microbatch."""

MADE_BY_THE_WRITER = frozenset({COMMUNICATION_SUM_RECORD.name, DRAINED_RECORD.name})
"""Records whose ``slot_seq`` is no number of their own."""

NO_WORD = 255
"""Stands for no word of a vocabulary."""

RECORD_TYPES: Mapping[int, RecordType] = {
    record.code: record
    for record in (
        STEP_RECORD,
        SPAN_RECORD,
        COLLECTIVE_RECORD,
        P2P_RECORD,
        COMPLETION_RECORD,
        MEMORY_RECORD,
        COMMUNICATION_SUM_RECORD,
        DRAINED_RECORD,
        DEVICE_TIME_RECORD,
        MICROBATCH_RECORD,
    )
}
"""Every record type by its code."""


def _positions(words: type[_Word]) -> dict[_Word, int]:
    return {word: position for position, word in enumerate(words)}


SPAN_CODES = _positions(SpanKind)
COLLECTIVE_CODES = _positions(CollectiveKind)
DIRECTION_CODES = _positions(Direction)
MEMORY_PHASE_CODES = _positions(MemoryPhase)
LEVEL_CODES = _positions(CaptureLevel)
