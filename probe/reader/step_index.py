"""A part of a rank read by ranges of steps, so that memory holds the records of some steps at a time.

A first reading unpacks each block once and notes which steps lie where (``StepIndex``). Each later
one unpacks the blocks that it needs and keeps the records of its steps (``StepSieve``). A record
belongs to its step, and to all that it reaches into: an operation may be waited for many steps later.

Steps are named by their place among those of the part. For example, with blocks of seven records::

    block         1                2
    step       0 0 0 0 1 1 1    1 1 1 2 2 2 2      a sieve of place 1 unpacks both, and keeps six
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schema.records import (
    COMPLETION_RECORD,
    DEVICE_TIME_RECORD,
    DRAINED_RECORD,
    MADE_BY_THE_WRITER,
    MEMORY_RECORD,
    STEP_RECORD,
    RecordType,
)
from .rank_records import Block, RankRecords
from .step_detail import add_detail

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_BY_EVENT = (COMPLETION_RECORD, DEVICE_TIME_RECORD)
_UNUSED = (MEMORY_RECORD, DRAINED_RECORD)
"""Records that no summary needs."""
_OPERATIONS = ("collective", "p2p")
_MOST_SLOTS = 1 << 32
"""A part that counts further is damaged: no process makes as many records."""
_NONE = np.zeros(0, np.int64)


class _Bounds(NamedTuple):
    """What a block holds."""

    steps: tuple[int, int] | None
    """Least and largest number of a step of its records."""
    slots: tuple[int, int] | None
    """Least and largest sequence number of these."""
    events: tuple[int, int] | None
    """Least and largest event of its completions and device times."""


class _SlotBits:
    """Which sequence numbers are there, a byte each: they are given from 1 without gaps."""

    def __init__(self) -> None:
        self._is_there = np.zeros(1 << 16, dtype=bool)
        self.last = 0
        self.are_possible = True

    def add(self, slots: Ints) -> Mask:
        """Take numbers in; return which of them are new."""
        if not len(slots):
            return np.zeros(0, dtype=bool)
        largest = int(slots.max())
        if int(slots.min()) < 0 or largest >= _MOST_SLOTS:
            self.are_possible = False
            return np.ones(len(slots), dtype=bool)
        if largest >= len(self._is_there):
            more = np.zeros(largest + largest // 4 + 1, dtype=bool)
            more[: len(self._is_there)] = self._is_there
            self._is_there = more
        is_new = ~self._is_there[slots]
        self._is_there[slots] = True
        self.last = max(self.last, largest)
        return is_new

    def up_to(self, slots: Ints) -> Ints:
        """Return how many numbers there are up to each of some, that one included."""
        ends = np.clip(slots + 1, 0, len(self._is_there))
        order = np.argsort(ends, kind="stable")
        bounds = np.concatenate([[0], ends[order]])
        counts = [
            np.count_nonzero(self._is_there[first:end]) for first, end in pairwise(bounds.tolist())
        ]
        found = np.empty(len(slots), np.int64)
        found[order] = np.cumsum(counts)
        return found


class StepIndex:
    """Where the records of each step of a part lie; it is filled by a first reading.

    Attributes:
        records: The part with its steps alone; None before it was read.
        number: The number of each step, in the order of recording.
        rows: Records with a step, by place; behind the last one those of steps that did not end.
        is_in_order: Whether the steps rise in number and time; else no range of them is apart from the others.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.records: RankRecords | None = None
        self.number, self.rows, self.is_in_order = _NONE, np.zeros(1, np.int64), True
        self._slot, self._end_ns = _NONE, _NONE
        self._bounds: dict[Block, _Bounds] = {}
        self._present = _SlotBits()
        self._steps: list[tuple[Ints, Ints]] = []
        self._far: list[tuple[Ints, Ints, Ints]] = []

    def wants(self, block: Block) -> bool:
        """Return that each block is looked at."""
        return True

    def sifted(
        self, block: Block, tables: Sequence[tuple[RecordType, pa.Table]]
    ) -> Iterator[tuple[RecordType, pa.Table]]:
        """Note what a block holds; yield its steps, and of operations one a step."""
        steps, slots, events = [], [], []
        for record, table in self._not_seen(tables):
            if not table.num_rows or record in _UNUSED:
                continue
            if record is STEP_RECORD:
                yield record, table
            elif record in _BY_EVENT:
                events.append(ints(table, "event_id"))
                self._note_reach_of_events(table)
            else:
                steps.append(ints(table, "step"))
                slots.append(ints(table, "slot_seq"))
                self._note_reach(table)
                if record.name in _OPERATIONS or record.name in MADE_BY_THE_WRITER:
                    changes = np.diff(steps[-1], prepend=steps[-1][0] - 1) != 0
                    yield record, table.filter(pa.array(changes))
        self._bounds[block] = _Bounds(*map(_least_and_largest, (steps, slots, events)))
        self._steps += [np.unique(own, return_counts=True) for own in steps]

    def complete(self, found: RankRecords) -> None:
        """Take the steps of a part, and what is held of each."""
        add_detail(found.tables, found.manifest, self._present)
        for name in MADE_BY_THE_WRITER:
            found.tables.pop(name, None)
        steps = {name: table for name, table in found.tables.items() if name == STEP_RECORD.name}
        self.records = RankRecords(found.rank, manifest=found.manifest, tables=steps)
        for table in steps.values():
            self.number, self._slot = ints(table, "step"), ints(table, "slot_seq")
            start_ns = ints(table, "start_ns")
            self._end_ns = start_ns + ints(table, "dur_ns")
            times = (start_ns, self._end_ns)
            self.is_in_order = bool((np.diff(self.number) > 0).all())
            self.is_in_order &= all(bool((np.diff(one) >= 0).all()) for one in times)
        self.is_in_order &= self._present.are_possible
        self.rows = np.zeros(len(self.number) + 1, np.int64)
        for step, rows in self._steps:
            np.add.at(self.rows, self.places(step), rows)

    def places(self, step: Ints) -> Ints:
        """Return the place of steps by number; one that did not end counts to the next that did."""
        return np.asarray(np.searchsorted(self.number, step))

    def places_of_events(self, event: Ints) -> Ints:
        """Return in which step the record of an event was made, as a place."""
        return np.asarray(np.searchsorted(self._slot, event))

    def far(self, is_wanted: Mask) -> Ints:
        """Return the events, sorted, that reach into some steps and lie further from them than next to them."""
        return np.unique(self._far_into(is_wanted)[0])

    def after_far(self, is_wanted: Mask) -> Mask:
        """Return the steps next to those of ``far``: an operation may be charged to the one after its own."""
        found = np.zeros(len(self.rows), dtype=bool)
        found[np.minimum(self._far_into(is_wanted)[1] + 1, len(self.number))] = True
        return found

    def _far_into(self, is_wanted: Mask) -> tuple[Ints, Ints]:
        """Return events that reach into some steps from afar, and the place of each."""
        if not self._far:
            return _NONE, _NONE
        event, first, last = (np.concatenate(own) for own in zip(*self._far, strict=True))
        wanted = np.append(0, np.cumsum(is_wanted))
        reaches = wanted[last + 1] > wanted[first]
        return event[reaches], first[reaches]

    def bounds(self, block: Block) -> _Bounds | None:
        """Return what a block holds; None where it was not there when the part was first read."""
        return self._bounds.get(block)

    def _not_seen(
        self, tables: Sequence[tuple[RecordType, pa.Table]]
    ) -> list[tuple[RecordType, pa.Table]]:
        """Return what earlier blocks did not hold, after its steps were noted: the ring and a segment may share records."""
        found = []
        for record, table in tables:
            if record.name not in MADE_BY_THE_WRITER:
                is_new = self._present.add(ints(table, "slot_seq"))
                table = table if is_new.all() else table.filter(pa.array(is_new))
            if record is STEP_RECORD:
                self._add_steps(table)
            found.append((record, table))
        return found

    def _add_steps(self, table: pa.Table) -> None:
        end_ns = ints(table, "start_ns") + ints(table, "dur_ns")
        self.number = np.append(self.number, ints(table, "step"))
        self._slot = np.append(self._slot, ints(table, "slot_seq"))
        self._end_ns = np.append(self._end_ns, end_ns)

    def _note_reach(self, table: pa.Table) -> None:
        """Note records that begin or end in a step that is not next to their own."""
        if "start_ns" not in table.column_names:
            return
        start_ns, place = ints(table, "start_ns"), self.places(ints(table, "step"))
        self._note_far(ints(table, "slot_seq"), place, start_ns, start_ns + ints(table, "dur_ns"))

    def _note_reach_of_events(self, table: pa.Table) -> None:
        """Note the same of what operations and the device did for a record."""
        event = ints(table, "event_id")
        place = self.places_of_events(event)
        if "start_ns" in table.column_names:
            start_ns = ints(table, "start_ns")
            self._note_far(event, place, start_ns, start_ns + ints(table, "dur_ns"))
            return
        for name in ("end_ns", "wait_end_ns"):
            time_ns = ints(table, name)
            self._note_far(event, place, time_ns, time_ns)

    def _note_far(self, event: Ints, place: Ints, start_ns: Ints, end_ns: Ints) -> None:
        first, last = (np.searchsorted(self._end_ns, one) for one in (start_ns, end_ns))
        is_far = (start_ns > 0) & ((first < place - 1) | (last > place + 1))
        if is_far.any():
            first, last = np.minimum(first, place), np.maximum(last, place)
            self._far.append((event[is_far], first[is_far], last[is_far]))


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
            if record is STEP_RECORD or record in _UNUSED or not table.num_rows:
                continue
            if record in _BY_EVENT:
                event = ints(table, "event_id")
                kept = self._has_event[self._index.places_of_events(event)]
            else:
                event = ints(table, "slot_seq")
                kept = self._is_wanted[self._index.places(ints(table, "step"))]
            kept = kept | np.isin(event, self._far)
            if kept.any():
                yield record, table.filter(pa.array(kept))

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


def ints(table: pa.Table, name: str) -> Ints:
    """Return a column of whole numbers with 64 bits."""
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def _least_and_largest(parts: Sequence[Ints]) -> tuple[int, int] | None:
    if not parts:
        return None
    return min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)
