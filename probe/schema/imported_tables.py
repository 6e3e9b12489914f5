"""Tables that only files of other tools fill."""

from __future__ import annotations

from .columns import RANK, Column, TableSpec, ns_column

UNNAMED_GROUP = "no name in the dump"
"""Description of a group that is known to one rank alone, as its dump has a number for it and no name."""
ELEMENTS = "elements"
"""Stands behind sizes that are no bytes, for the types are not recorded."""


def _bytes(name: str, meaning: str) -> Column:
    return Column(name, "int64", "bytes", meaning, nullable=True)


def _splits(name: str, verb: str) -> Column:
    meaning = (
        f"bytes that the rank {verb} per member, in group order, where an all-to-all has lists; "
        "without types its elements, and that word"
    )
    return Column(name, "string", "1", meaning, nullable=True)


_STEP = Column("step", "int64", "id", "optimizer step, -1 before the first or when unknown")
_POSITION = Column(
    "position", "int32", "id", "place among all events of the rank's source", nullable=True
)

_ELEMENTS = Column(
    "elements", "int64", "1", "elements of the message, where its bytes are unknown", nullable=True
)
_PLACE = Column(
    "place", "category", "name", "function, file and line that issued it", nullable=True
)

COLLECTIVE_CALL = TableSpec(
    "collective_call",
    "what a recorder of the framework keeps of one member of one collective",
    (
        RANK,
        Column("group_id", "category", "id", "process group"),
        Column("seq", "int64", "id", "position among the collectives of its group"),
        _bytes("input_bytes", "all tensors that the rank gave"),
        _bytes("output_bytes", "all tensors that the rank expected"),
        _splits("input_splits", "gave"),
        _splits("output_splits", "expected"),
        Column(
            "is_started", "bool", "1", "whether it had begun on the rank's device", nullable=True
        ),
        _ELEMENTS,
        _PLACE,
    ),
)

TRANSFER_CALL = TableSpec(
    "transfer_call",
    "what a recorder of the framework keeps of one end of one transfer",
    (
        RANK,
        Column("event_id", "int64", "id", "that of the send or receive in `p2p`"),
        _ELEMENTS,
        _PLACE,
    ),
)

PYTHON_CALL = TableSpec(
    "python_call",
    "one Python function that ran for a millisecond or more, where the profiler recorded stacks",
    (
        RANK,
        _STEP,
        Column("thread", "int64", "id", "thread it ran on"),
        Column("name_id", "int32", "id", "file, line and function"),
        ns_column("start_ns", "start"),
        ns_column("dur_ns", "duration"),
        _POSITION,
    ),
)

ALLOCATION_FAILURE = TableSpec(
    "allocation_failure",
    "one allocation that failed for want of device memory",
    (
        RANK,
        ns_column("time_ns", "when it failed"),
        _bytes("size_bytes", "what was asked for"),
        _bytes("free_bytes", "what the device had free"),
        _bytes("allocated_bytes", "live in the device allocator then"),
        _bytes("reserved_bytes", "held by the device allocator then"),
        Column("place", "category", "name", "functions that asked, innermost first", nullable=True),
    ),
)
