"""Two small tables of a run of many ranks: its steps, and each rank by blocks of steps.

They are what a page can show of a large run. The summaries are read a file at a time, so that memory
holds the rows of few ranks, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    bounds = [
        (one.first_step, one.last_step)
        for one in summaries.segments
        if one.first_step is not None and one.last_step is not None
    ]
    if not bounds:
        return Blocks(STEPS.empty_table(), BLOCKS.empty_table())
    first, last = min(low for low, _ in bounds), max(high for _, high in bounds)
    each = -(-(last - first + 1) // MOST_BLOCKS)
    by_step = _Steps(first, last - first + 1)
    parts = list(_parts(summaries, by_step, each))
    return Blocks(by_step.table(), pa.concat_tables(parts).combine_chunks())


def _parts(summaries: Summaries, by_step: _Steps, each: int) -> Iterator[pa.Table]:
    """Yield the blocks of the ranks of each file, and count its steps."""
    for part in summaries.parts(("rank", "step", "wall_s", *COMPUTED, *_EXPOSED, *_ROWS)):
        at = part["step"].to_numpy() - by_step.first
        times = {
            "wall_s": part["wall_s"].to_numpy(),
            "own_s": _sum(part, COMPUTED),
            "exposed_s": _sum(part, _EXPOSED),
        }
        by_step.add(at, times, _sum(part, _ROWS))
        yield _by_block(part["rank"].to_numpy(), at // each, times, (by_step.first, each))


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
    cells, at, count = np.unique(
        np.stack([rank.astype(np.int64), block]), axis=1, return_inverse=True, return_counts=True
    )
    at = at.ravel()
    begin = first + cells[1] * each
    columns = {
        "rank": cells[0],
        "first_step": begin,
        "last_step": begin + each - 1,
        "steps": count,
        **{name: np.bincount(at, time, len(count)) / count for name, time in times.items()},
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
