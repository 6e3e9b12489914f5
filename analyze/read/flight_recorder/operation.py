"""One operation of a dump, whichever version of the recorder wrote it."""

from __future__ import annotations

from dataclasses import dataclass

from meshscope.probe.schema.terms import CollectiveKind, Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One entry of the ring."""

    record: int
    """Position among all operations of the rank."""
    group: str
    """Name of the process group."""
    seq: int
    """Number among the collectives of the group; for a transfer among those of the rank in it."""
    kind: CollectiveKind
    direction: Direction | None
    """Which end of a transfer it is; None for a collective."""
    peer: int
    """Other end of a transfer, as a number inside the group; -1 if unknown."""
    size_bytes: int
    dtype: str | None
    created_ns: int
    started_ns: int | None
    completed_ns: int | None
    is_complete: bool
    is_end_seen: bool
    """Whether it is known to have ended; the recorder also lets go of what timed out."""
    is_given_up: bool
    """Whether it timed out: the recorder has let go of it without an end."""
    is_started: bool | None
    """Whether its device had begun it; None if the dump does not tell."""
    input_bytes: int
    output_bytes: int
    input_splits: str | None
    """Bytes of each tensor of an all-to-all of lists, one tensor a member; or elements, with that word behind."""
    output_splits: str | None
    elements: int | None
    """Elements of the message, where its bytes are unknown: old versions keep no types."""
    place: str | None
    """Function, file and line of the program that issued it."""
    duration_ns: int | None
    """Length by events on the device, where the recorder had them."""
