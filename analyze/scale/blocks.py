"""Two small tables of a run of many ranks: its steps, and each rank by blocks of steps.

They are what a page can show of a large run. The summaries are read a file at a time, so that memory
holds the rows of few ranks, however many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ..tables.arrays import FloatArray, IntArray
from .dense import COMPUTED
from .rows import Rows, joined
from .store import Summaries
from .summary import COUNTED, EXPOSED

MOST_BLOCKS = 100
"""Blocks of a run: as many columns as a page has room for."""
_EXPOSED = tuple(f"{name}_s" for name in EXPOSED)
_ROWS = tuple(f"{name}_rows" for name in COUNTED)
_TIMES = ("wall_s", "own_s", "exposed_s")
Times = dict[str, FloatArray]
"""Times by row, by their names."""
COUNTED_COLUMNS = ("rank", "step", "wall_s", *COMPUTED, *_EXPOSED, *_ROWS)
"""What the tables need of the summaries."""

STEPS = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("ranks", pa.int32(), nullable=False),
        pa.field("step_s", pa.float64(), nullable=False),
        pa.field("own_s", pa.float64(), nullable=False),
        pa.field("exposed_s", pa.float64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
    ]
)
"""By step: the ranks that finished it, its longest length of any rank, the means of own work and of exposed
communication over ranks, and the records of all ranks."""
BLOCKS = pa.schema(
    [
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("first_step", pa.int64(), nullable=False),
        pa.field("last_step", pa.int64(), nullable=False),
        pa.field("steps", pa.int32(), nullable=False),
        *(pa.field(name, pa.float32(), nullable=False) for name in _TIMES),
    ]
)
"""By rank and block of steps: how many steps of the block the rank finished, and its means over them."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The two tables."""

    steps: pa.Table
    blocks: pa.Table


def blocks_of(summaries: Summaries) -> Blocks:
    """Return the steps of a run, and its ranks by blocks of steps.

    Raises:
        RunDirectoryError: A file of the summaries cannot be read.
    """
    counting = Counting(summaries)
    for part in joined(summaries.parts(COUNTED_COLUMNS, zeros=False)):
        counting.add(Rows(part))
    return counting.blocks()


class Counting:
    """The tables of a run, from its rows, some ranks at a time."""

    def __init__(self, summaries: Summaries) -> None:
        """Begin without rows."""
        bounds = [
            (one.first_step, one.last_step)
            for one in summaries.segments
            if one.first_step is not None and one.last_step is not None
        ]
        first = min((low for low, _ in bounds), default=0)
        last = max((high for _, high in bounds), default=first)
        self._each = -(-(last - first + 1) // MOST_BLOCKS)
        self._by_step = _Steps(first, last - first + 1)
        self._parts: list[pa.Table] = []

    def add(self, rows: Rows) -> None:
        """Count the rows of some ranks."""
        if not len(rows):
            return
        times = {
            "wall_s": np.asarray(rows.column("wall_s"), dtype=np.float64),
            "own_s": rows.total(COMPUTED, np.float64),
            "exposed_s": rows.total(_EXPOSED, np.float64),
        }
        records = rows.total(_ROWS, np.float64)
        first, each = self._by_step.first, self._each
        if rows.is_regular:
            at = rows.steps - first
            self._by_step.add_regular(at, times, records, len(rows.ranks))
            ranks = rows.ranks
            sums, held, count = _sums_of_regular(at // each, times, len(ranks))
        else:
            at = rows.step - first
            self._by_step.add(at, times, records)
            ranks = np.unique(rows.rank).astype(np.int64)
            cell = np.searchsorted(ranks, rows.rank) * (MOST_BLOCKS + 1) + at // each
            sums, held, count = _sums_by_block(cell, times)
        self._parts.append(_table(ranks, held, (count, sums), (first, each)))

    def blocks(self) -> Blocks:
        """Return the tables."""
        parts = [BLOCKS.empty_table(), *self._parts]
        return Blocks(self._by_step.table(), pa.concat_tables(parts).combine_chunks())


def _sums_of_regular(
    block: IntArray, times: Times, ranks: int
) -> tuple[list[FloatArray], tuple[IntArray, IntArray], IntArray]:
    """Return the sums of ranks that have the same steps, as ``_sums_by_block`` does, in the same order."""
    starts = np.flatnonzero(np.diff(block, prepend=-1))
    sizes = np.diff(starts, append=len(block))
    laid = [time.reshape(ranks, -1) for time in times.values()]
    sums = [time[:, starts] for time in laid]
    even = (np.diff(starts) == sizes[0]).all() and sizes[-1] <= sizes[0]
    for after in range(1, int(sizes.max())):
        longer = np.flatnonzero(sizes > after)
        at: IntArray | slice = starts[longer] + after
        if even:
            # The first ones, each as far from the next: nothing needs to be gathered.
            at = slice(starts[0] + after, starts[len(longer) - 1] + after + 1, sizes[0])
        for total, time in zip(sums, laid, strict=True):
            if len(longer) == len(starts):
                total += time[:, at]
            else:
                total[:, longer] += time[:, at]
    held = np.repeat(np.arange(ranks), len(starts)), np.tile(block[starts], ranks)
    return [total.ravel() for total in sums], held, np.tile(sizes, ranks)


def _sums_by_block(
    cell: IntArray, times: Times
) -> tuple[list[FloatArray], tuple[IntArray, IntArray], IntArray]:
    """Return the sums of each rank and block, which these are (positions of ranks, blocks), and their steps."""
    steps: IntArray = np.bincount(cell)
    held = np.flatnonzero(steps)
    sums = [np.asarray(np.bincount(cell, time)[held], np.float64) for time in times.values()]
    return sums, np.divmod(held, MOST_BLOCKS + 1), steps[held]


def _table(
    ranks: IntArray,
    held: tuple[IntArray, IntArray],
    counted: tuple[IntArray, list[FloatArray]],
    place: tuple[int, int],
) -> pa.Table:
    """Return the rows of some ranks; ``place`` is the first step of the run and the steps of a block."""
    (rank, block), (count, sums), (first, each) = held, counted, place
    begin = first + block * each
    means = {name: total / count for name, total in zip(_TIMES, sums, strict=True)}
    steps = {"first_step": begin, "last_step": begin + each - 1, "steps": count}
    columns = {"rank": ranks[rank], **steps, **means}
    arrays = [pa.array(columns[one.name]).cast(one.type) for one in BLOCKS]
    return pa.Table.from_arrays(arrays, schema=BLOCKS)


@dataclass(slots=True)
class _Steps:
    """Running sums by step."""

    first: int
    size: int
    ranks: FloatArray = field(init=False)
    longest: FloatArray = field(init=False)
    own: FloatArray = field(init=False)
    exposed: FloatArray = field(init=False)
    records: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.ranks, self.longest, self.own, self.exposed, self.records = np.zeros((5, self.size))

    def add_regular(self, at: IntArray, times: Times, records: FloatArray, ranks: int) -> None:
        """Count the steps of ranks that have the same ones."""
        wall, own, exposed, records = (
            values.reshape(ranks, -1) for values in (*times.values(), records)
        )
        self.ranks[at] += ranks
        self.longest[at] = np.maximum(self.longest[at], wall.max(axis=0))
        self.own[at] += own.sum(axis=0)
        self.exposed[at] += exposed.sum(axis=0)
        self.records[at] += records.sum(axis=0)

    def add(self, at: IntArray, times: Times, records: FloatArray) -> None:
        """Count the steps of some ranks."""
        self.ranks += np.bincount(at, minlength=self.size)
        np.maximum.at(self.longest, at, times["wall_s"])
        self.own += np.bincount(at, times["own_s"], self.size)
        self.exposed += np.bincount(at, times["exposed_s"], self.size)
        self.records += np.bincount(at, records, self.size)

    def table(self) -> pa.Table:
        """Return the steps that some rank finished."""
        held = np.flatnonzero(self.ranks)
        ranks = self.ranks[held]
        columns = {
            "step": self.first + held,
            "ranks": ranks,
            "step_s": self.longest[held],
            "own_s": self.own[held] / ranks,
            "exposed_s": self.exposed[held] / ranks,
            "records": self.records[held],
        }
        arrays = [pa.array(columns[one.name]).cast(one.type) for one in STEPS]
        return pa.Table.from_arrays(arrays, schema=STEPS)
