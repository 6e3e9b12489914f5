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
from .store import Summaries
from .summary import COUNTED, EXPOSED

MOST_BLOCKS = 100
"""Blocks of a run: as many columns as a page has room for."""
_EXPOSED = tuple(f"{name}_s" for name in EXPOSED)
_ROWS = tuple(f"{name}_rows" for name in COUNTED)
_TIMES = ("wall_s", "own_s", "exposed_s")
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
    for part in summaries.parts(COUNTED_COLUMNS):
        counting.add(part)
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

    def add(self, part: pa.Table) -> None:
        """Count the rows of some ranks, each rank's in one part."""
        at = part["step"].to_numpy() - self._by_step.first
        times = {
            "wall_s": part["wall_s"].to_numpy(),
            "own_s": _sum(part, COMPUTED),
            "exposed_s": _sum(part, _EXPOSED),
        }
        self._by_step.add(at, times, _sum(part, _ROWS))
        place = self._by_step.first, self._each
        self._parts.append(_by_block(part["rank"].to_numpy(), at // self._each, times, place))

    def blocks(self) -> Blocks:
        """Return the tables."""
        parts = [BLOCKS.empty_table(), *self._parts]
        return Blocks(self._by_step.table(), pa.concat_tables(parts).combine_chunks())


def _sum(part: pa.Table, names: tuple[str, ...]) -> FloatArray:
    total = np.zeros(part.num_rows)
    for name in names:
        total += part[name].to_numpy()
    return total


def _by_block(
    rank: IntArray, block: IntArray, times: dict[str, FloatArray], place: tuple[int, int]
) -> pa.Table:
    """Return the rows of some ranks; ``place`` is the first step of the run and the steps of a block."""
    first, each = place
    ranks, blocks = np.unique(rank), int(block.max(initial=0)) + 1
    cell = np.searchsorted(ranks, rank) * blocks + block
    steps = np.bincount(cell, minlength=len(ranks) * blocks)
    held = np.flatnonzero(steps)
    begin, count = first + held % blocks * each, steps[held]
    columns = {
        "rank": ranks[held // blocks],
        "first_step": begin,
        "last_step": begin + each - 1,
        "steps": count,
        **{name: np.bincount(cell, time, len(steps))[held] / count for name, time in times.items()},
    }
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

    def add(self, at: IntArray, times: dict[str, FloatArray], records: FloatArray) -> None:
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
