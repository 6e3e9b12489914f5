"""A part of a rank read by ranges of steps, so that memory holds the records of some steps at a time.

A first reading unpacks each block once and notes which steps lie where (``StepIndex``). Each later
one unpacks the blocks that it needs and keeps the records of its steps (``StepSieve``). A record
belongs to its step, and to all that it reaches into: an operation may be waited for many steps later.

Steps are named by their place among those of the part. For example, with blocks of seven records::

    block         1                2
    step       0 0 0 0 1 1 1    1 1 1 2 2 2 2      a sieve of place 1 unpacks both, and keeps six
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from .held_steps import HeldSteps, held_steps
from .numbers_present import SlotBits
from .rank_records import Block, RankRecords, made_of, note_gaps, operations_in
from .step_detail import add_detail
from .wanted import COUNTED

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

BY_EVENT = (COMPLETION_RECORD, DEVICE_TIME_RECORD)
_OPERATIONS = ("collective", "p2p")
_NONE = np.zeros(0, np.int64)


class _Bounds(NamedTuple):
    """What a block holds."""

    steps: tuple[int, int] | None
    """Least and largest number of a step of its records."""
    slots: tuple[int, int] | None
    """Least and largest sequence number of these."""
    events: tuple[int, int] | None
    """Least and largest event of its completions and device times."""
    sampled: tuple[int, int] | None
    """Least and largest number of a step of its samples of memory."""
    has_strays: bool
    """Whether it holds completions or device times of records that are not there."""


class _RowsOfSteps:
    """How many records of some kinds each step has."""

    def __init__(self) -> None:
        self._found: list[tuple[Ints, Ints]] = []

    def add(self, step: Ints) -> Ints:
        """Count some records by their steps; return these."""
        self._found.append(np.unique(step, return_counts=True))
        return step

    def sums(self) -> tuple[Ints, Ints]:
        """Return the steps, ascending, and the records of each."""
        if not self._found:
            return _NONE, _NONE
        step, rows = (np.concatenate(own) for own in zip(*self._found, strict=True))
        steps, place = np.unique(step, return_inverse=True)
        return steps, np.bincount(place, weights=rows, minlength=len(steps)).astype(np.int64)


class StepIndex:
    """Where the records of each step of a part lie; it is filled by a first reading.

    Attributes:
        records: The part with its steps alone, and all that is said of it; None before it was read.
        held: What it holds of each step.
        present: The sequence numbers of its records.
        number: The number of each step, in the order of recording.
        rows: Records with a step, by place; behind the last one those of steps that did not end.
        is_in_order: Whether the steps rise in number and time; else no range of them is apart from the others.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.records: RankRecords | None = None
        self.held = HeldSteps()
        self.number, self.rows, self.is_in_order = _NONE, np.zeros(1, np.int64), True
        self._slot, self._end_ns = _NONE, _NONE
        self._bounds: dict[Block, _Bounds] = {}
        self.present = SlotBits()
        self._steps = _RowsOfSteps()
        self._counted, self._sampled = _RowsOfSteps(), _RowsOfSteps()
        self._drained: list[pa.Table] = []
        self._operations = 0
        self._far: list[tuple[Ints, Ints, Ints]] = []

    def wants(self, block: Block) -> bool:
        """Return that each block is looked at."""
        return True

    def sifted(
        self, block: Block, tables: Sequence[tuple[RecordType, pa.Table]]
    ) -> Iterator[tuple[RecordType, pa.Table]]:
        """Note what a block holds; yield its steps, and of operations one a step."""
        steps, slots, events, sampled = [], [], [], []
        for record, table in self._not_seen(tables):
            if not table.num_rows:
                continue
            self._operations += operations_in([(record.name, table)])
            if record is STEP_RECORD:
                yield record, table
            elif record is DRAINED_RECORD:
                self._drained.append(table)
            elif record is MEMORY_RECORD:
                sampled.append(self._sampled.add(ints(table, "step")))
            elif record in BY_EVENT:
                events.append(ints(table, "event_id"))
                self._note_reach_of_events(table)
            else:
                steps.append(self._steps.add(ints(table, "step")))
                slots.append(ints(table, "slot_seq"))
                if record.name in COUNTED:
                    self._counted.add(steps[-1])
                self._note_reach(table)
                if record.name in MADE_BY_THE_WRITER:
                    self.present.add_sums(slots[-1])
                if record.name in _OPERATIONS or record.name in MADE_BY_THE_WRITER:
                    changes = np.diff(steps[-1], prepend=steps[-1][0] - 1) != 0
                    yield record, table.filter(pa.array(changes))
        self._bounds[block] = _Bounds(
            steps=_least_and_largest(steps),
            slots=_least_and_largest(slots),
            events=_least_and_largest(events),
            sampled=_least_and_largest(sampled),
            has_strays=not all(self.present.are_there(own).all() for own in events),
        )

    def complete(self, found: RankRecords) -> None:
        """Take the steps of a part, and what is held of each."""
        add_detail(found.tables, found.manifest, self.present)
        found.made = made_of(found.manifest, self._operations, self.present)
        note_gaps(found, self.present, pa.concat_tables(self._drained) if self._drained else None)
        steps = {name: table for name, table in found.tables.items() if name == STEP_RECORD.name}
        self.records = replace(found, tables=steps)
        for table in steps.values():
            self.number, self._slot = ints(table, "step"), ints(table, "slot_seq")
            start_ns = ints(table, "start_ns")
            self._end_ns = start_ns + ints(table, "dur_ns")
            times = (start_ns, self._end_ns)
            self.is_in_order = bool((np.diff(self.number) > 0).all())
            self.is_in_order &= all(bool((np.diff(one) >= 0).all()) for one in times)
        self.is_in_order &= self.present.are_possible
        self.rows = np.zeros(len(self.number) + 1, np.int64)
        step, rows = self._steps.sums()
        np.add.at(self.rows, self.places(step), rows)
        self.held = self._held(self.records)

    def _held(self, part: RankRecords) -> HeldSteps:
        """Return what is held of each step, as if all had been read."""
        step, rows = self._counted.sums()
        sampled_step, samples = self._sampled.sums()
        own = held_steps(part)
        return own._replace(
            rows=_at(own.step, step, rows),
            all_rows=int(rows.sum()),
            sampled_step=sampled_step,
            samples=samples,
        )

    @property
    def is_unfinished(self) -> Mask:
        """Return the places to which records of steps count that have no record of their own."""
        found = np.zeros(len(self.rows), dtype=bool)
        found[-1] = True
        stray, _ = self._steps.sums()
        found[self.places(stray[~np.isin(stray, self.number)])] = True
        return found

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
                is_new = self.present.add(ints(table, "slot_seq"))
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


def ints(table: pa.Table, name: str) -> Ints:
    """Return a column of whole numbers with 64 bits."""
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def _at(places: Ints, step: Ints, rows: Ints) -> Ints:
    """Return the rows of some steps, 0 where there are none."""
    found = np.zeros(len(places), np.int64)
    _, here, there = np.intersect1d(places, step, return_indices=True)
    found[here] = rows[there]
    return found


def _least_and_largest(parts: Sequence[Ints]) -> tuple[int, int] | None:
    if not parts:
        return None
    return min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)
