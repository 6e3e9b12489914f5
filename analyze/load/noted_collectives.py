"""The last collectives of ranks that did not record them, as they noted them from PyTorch's own recorder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from meshscope.probe.schema.manifest import LAST_OPERATIONS_KEY
from meshscope.probe.schema.printable import printable
from meshscope.probe.schema.standstill_tables import NOTED_COLLECTIVE

from ..account.hangs.notes import notes_of_last_step

_MOST_TEXT = 300
"""Longer names come from damage."""


def noted_collectives(steps: pa.Table, manifests: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Return the ``noted_collective`` rows of the ranks whose last step never ended.

    Args:
        steps: The ``step`` table.
        manifests: Manifests of the ranks.
    """
    notes = notes_of_last_step(steps, manifests, LAST_OPERATIONS_KEY)
    rows = [{"rank": rank, **row} for rank, note in notes.items() for row in _of_note(note)]
    return (
        NOTED_COLLECTIVE.conform(pa.Table.from_pylist(rows)) if rows else NOTED_COLLECTIVE.empty()
    )


def _of_note(note: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    # Read only where something was noted: most runs end in order.
    from ..read.flight_recorder.dump import operations_of

    operations = [one for one in operations_of(note.get("entries")) if one.direction is None]
    last = max((one.record for one in operations), default=-1)
    place = _place(note.get("place"))
    for one in operations:
        yield {
            "group_id": printable(one.group)[:_MOST_TEXT],
            # Backends count from 1.
            "seq": one.seq - 1,
            "kind": one.kind.value,
            "size_bytes": one.size_bytes,
            "dtype": one.dtype,
            "is_open": not one.is_complete or bool(note.get("error")),
            "time_ns": note["time_ns"],
            "input_bytes": one.input_bytes,
            "output_bytes": one.output_bytes,
            "input_splits": one.input_splits,
            "output_splits": one.output_splits,
            "elements": one.elements,
            "place": place if one.record == last else None,
        }


def _place(noted: object) -> str | None:
    """Return the line of the program at which an exception ended it: there it issued its last operation."""
    match noted:
        case [str(function), str(file), int(line)]:
            return f"{printable(function)} ({printable(file)}:{line})"[:_MOST_TEXT]
    return None
