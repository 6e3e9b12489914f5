"""Reads a part of a rank of which only some steps are to be kept: whole, or these steps alone.

Where the whole has room it is read in one go, and thinned. Else each block is unpacked twice: once to learn
what each step holds, which the choice goes by, and once for the records of the chosen steps. Both leave the
same records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from ..schema.records import MEMORY_RECORD, STEP_RECORD, RecordType
from .held_steps import HeldSteps, held_steps, rows_of
from .part_sizes import unpacked_bytes
from .rank_records import Block, RankRecords, Sieve, read_rank
from .sampled_steps import BY_EVENT, StepSelection, kept_samples, thin
from .step_index import Ints, Mask, StepIndex, ints
from .step_sieve import StepSieve
from .wanted import COUNTED

READ_FACTOR = 2.8
"""What a part takes while it is read whole, over the unpacked size of its records."""
ROW_BYTES = 700
"""What the analysis takes for a record that needs room."""
_MOST_PACKED = 100
"""Records pack to no less than one of so many bytes: so small files need not be looked into."""
_NONE: Ints = np.zeros(0, np.int64)


class PartRead(Protocol):
    """A part that is read up to the choice of steps."""

    @property
    def all_rows(self) -> int:
        """Return how many records that need room it has."""

    def held(self) -> HeldSteps:
        """Return what it holds of each step."""

    def kept(self, selection: StepSelection) -> RankRecords:
        """Return its records that are of a selection."""


def read_part(
    directory: Path, rank: int, packed_bytes: int, most_rows: int, sieve: Sieve | None = None
) -> PartRead:
    """Read a part up to the choice of steps.

    Args:
        directory: That of the part.
        rank: Its rank.
        packed_bytes: What its segments take on disk.
        most_rows: Records that need room and have it, of all ranks.
        sieve: What is kept of it in any case; all if not given.

    Raises:
        FormatVersionError: It was written by another format version.
    """
    room_bytes = most_rows * ROW_BYTES / READ_FACTOR
    if sieve is None and _is_beyond(directory, packed_bytes, room_bytes):
        index = StepIndex()
        read_rank(directory, rank, index)
        if index.records is not None and len(index.number) and index.is_in_order:
            return _Indexed(directory, index, index.records)
    return _Whole(read_rank(directory, rank, sieve))


def _is_beyond(directory: Path, packed_bytes: int, room_bytes: float) -> bool:
    """Tell whether the unpacked records of a part take more than some room."""
    return packed_bytes * _MOST_PACKED > room_bytes and unpacked_bytes(directory) > room_bytes


class _Whole:
    """A part that has room."""

    def __init__(self, records: RankRecords) -> None:
        self._records = records

    @property
    def all_rows(self) -> int:
        return rows_of(self._records)

    def held(self) -> HeldSteps:
        return held_steps(self._records)

    def kept(self, selection: StepSelection) -> RankRecords:
        thin(self._records, selection)
        return self._records


class _Indexed:
    """A part of which only the chosen steps have room."""

    def __init__(self, directory: Path, index: StepIndex, whole: RankRecords) -> None:
        self._directory, self._index, self._whole = directory, index, whole

    @property
    def all_rows(self) -> int:
        return self._index.held.all_rows

    def held(self) -> HeldSteps:
        return self._index.held

    def kept(self, selection: StepSelection) -> RankRecords:
        if selection.is_whole:
            return read_rank(self._directory, self._whole.rank)
        sieve = _SelectionSieve(self._index, self._whole, selection)
        found = read_rank(self._directory, self._whole.rank, sieve)
        self._leave_out_ends(found)
        thin(found, selection)
        return found

    def _leave_out_ends(self, found: RankRecords) -> None:
        """Leave out ends of records that are there and were not kept; lost ones are stated by theirs."""
        begun = [
            _NONE,
            *(ints(found.tables[name], "slot_seq") for name in COUNTED if name in found.tables),
        ]
        for name in BY_EVENT:
            if (table := found.tables.get(name)) is not None:
                event = ints(table, "event_id")
                kept = np.isin(event, np.concatenate(begun)) | ~self._index.present.are_there(event)
                found.tables[name] = table.filter(pa.array(kept))


class _SelectionSieve(StepSieve):
    """Keeps the records of a selection of steps, with those that ``thin`` needs to find what reaches into them."""

    def __init__(self, index: StepIndex, whole: RankRecords, selection: StepSelection) -> None:
        kept = np.append(selection.keeps(index.number, index.held.detail), False)
        before = np.append(kept[1:], False)
        super().__init__(index, kept | before | index.is_unfinished)
        self._whole, self._selection = whole, selection

    def wants(self, block: Block) -> bool:
        """Return whether a block may hold a record that is kept, a sample of memory, or an end without its begin."""
        bounds = self._index.bounds(block)
        if super().wants(block) or bounds is None or bounds.has_strays:
            return True
        if bounds.sampled is None:
            return False
        first, last = bounds.sampled
        return first <= self._selection.last and last >= self._selection.first

    def _keeps_events(self, event: Ints) -> Mask:
        return super()._keeps_events(event) | ~self._index.present.are_there(event)

    def sifted(
        self, block: Block, tables: Sequence[tuple[RecordType, pa.Table]]
    ) -> Iterator[tuple[RecordType, pa.Table]]:
        # A live writer goes on meanwhile: what it made since the index belongs to steps that this has not.
        known = [
            (record, table.filter(pa.array(ints(table, "slot_seq") <= self._index.present.last)))
            for record, table in tables
        ]
        yield from super().sifted(block, known)
        for record, table in known:
            if record is MEMORY_RECORD and table.num_rows:
                yield record, table.filter(pa.array(kept_samples(table, self._selection)))

    def complete(self, found: RankRecords) -> None:
        super().complete(found)
        found.manifest, found.limits = self._whole.manifest, list(self._whole.limits)
        found.last_seen, found.made = self._whole.last_seen, self._whole.made


class Lengths:
    """Keeps the steps of a part, and of all else the last of each block: when it began and ended is known from these."""

    def wants(self, block: Block) -> bool:
        """Return that each block is looked at."""
        return True

    def sifted(
        self, block: Block, tables: Sequence[tuple[RecordType, pa.Table]]
    ) -> Iterator[tuple[RecordType, pa.Table]]:
        """Yield the steps of a block, and the last of its other records."""
        for record, table in tables:
            yield record, table if record is STEP_RECORD else table[-1:]

    def complete(self, found: RankRecords) -> None:
        """Add nothing."""
