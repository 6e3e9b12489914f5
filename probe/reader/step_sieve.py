"""Keeps the records of some steps of a part that is read again, as its index says where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..schema.records import DRAINED_RECORD, MEMORY_RECORD, STEP_RECORD, RecordType
from .rank_records import Block, RankRecords
from .step_index import BY_EVENT, Ints, Mask, StepIndex, ints

_NOT_SIFTED = (STEP_RECORD, MEMORY_RECORD, DRAINED_RECORD)
"""Records that the index holds, or that no summary needs."""


class StepSieve:
    """Keeps the records of some steps of a part, as they are read."""

    def __init__(self, index: StepIndex, is_wanted: Mask) -> None:
        """Choose the steps.

        Args:
            index: Of the part.
            is_wanted: By place, one behind the last step included.
        """
        self._index, self._is_wanted = index, is_wanted
        self._far = index.far(is_wanted)
        # An operation may be issued in another step than the one that its record names.
        near = np.convolve(is_wanted, np.ones(3), "same") > 0
        self._has_event: Mask = near

    def wants(self, block: Block) -> bool:
        """Return whether a block may hold a record that is kept."""
        held = self._index.bounds(block)
        if held is None:
            return True
        return (
            self._meets(self._is_wanted, held.steps, self._index.places)
            or self._meets(self._has_event, held.events, self._index.places_of_events)
            or self._has_far(held.slots)
            or self._has_far(held.events)
        )

    def sifted(
        self, block: Block, tables: Sequence[tuple[RecordType, pa.Table]]
    ) -> Iterator[tuple[RecordType, pa.Table]]:
        """Yield what is kept of a block."""
        for record, table in tables:
            if record in _NOT_SIFTED or not table.num_rows:
                continue
            if record in BY_EVENT:
                event = ints(table, "event_id")
                kept = self._keeps_events(event)
            else:
                event = ints(table, "slot_seq")
                kept = self._is_wanted[self._index.places(ints(table, "step"))]
            kept = kept | np.isin(event, self._far)
            if kept.any():
                yield record, table.filter(pa.array(kept))

    def _keeps_events(self, event: Ints) -> Mask:
        """Tell which completions and device times are kept, by the record that they are of."""
        return np.asarray(self._has_event[self._index.places_of_events(event)])

    def complete(self, found: RankRecords) -> None:
        """Add all steps of the part."""
        if self._index.records is not None:
            found.tables |= self._index.records.tables

    def _has_far(self, bounds: tuple[int, int] | None) -> bool:
        if bounds is None:
            return False
        first, last = bounds
        return bool(
            np.searchsorted(self._far, first) < np.searchsorted(self._far, last, side="right")
        )

    @staticmethod
    def _meets(mask: Mask, bounds: tuple[int, int] | None, places: Callable[[Ints], Ints]) -> bool:
        if bounds is None:
            return False
        first, last = places(np.array(bounds))
        return bool(mask[first : last + 1].any())
