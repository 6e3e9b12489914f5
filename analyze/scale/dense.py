"""Summaries as arrays of steps and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..tables.arrays import FloatArray, IntArray
from ..tables.classes import COMPUTE_CLASSES
from .rows import Rows

COMPUTED = tuple(f"{name}_s" for name in COMPUTE_CLASSES)
"""Columns that are own work."""


@dataclass(frozen=True, slots=True)
class Dense:
    """Summaries of the steps that all ranks finished: each column is [step, rank]."""

    table: pa.Table
    order: IntArray
    """Row of each step and rank, by step."""
    ranks: IntArray
    steps: IntArray

    @classmethod
    def of(cls, table: pa.Table, steps: IntArray) -> Dense:
        """Return some steps, which every rank with a row has."""
        rows = Rows(table)
        if rows.is_regular and len(rows.steps) == len(steps) and (np.diff(rows.ranks) > 0).all():
            order = np.arange(len(rows)).reshape(len(rows.ranks), -1).T.ravel()
            return cls(table, order, rows.ranks, steps)
        rank, step = rows.rank.astype(np.int64), rows.step.astype(np.int64)
        held = np.flatnonzero(np.isin(step, steps))
        order = held[np.lexsort((rank[held], step[held]))]
        return cls(table, order, np.unique(rank), steps)

    def by_step(self, name: str) -> FloatArray:
        """Return a column as [step, rank]; NaN where it is not known, 0 without the column."""
        if name not in self.table.column_names:
            return np.zeros((len(self.steps), len(self.ranks)))
        values = self.table[name].to_numpy().astype(np.float64)
        return np.asarray(values[self.order].reshape(len(self.steps), len(self.ranks)))

    def is_unknown(self, name: str) -> bool:
        """Return whether no row of a column is known."""
        held = name in self.table.column_names
        return held and self.table[name].null_count == self.table.num_rows

    def at(self, positions: Sequence[int]) -> Dense:
        """Return some of the steps, by their positions."""
        order = self.order.reshape(len(self.steps), len(self.ranks))[positions]
        return Dense(self.table, order.ravel(), self.ranks, self.steps[positions])

    def own_s(self) -> FloatArray:
        """Return the own work [step, rank]: all that was computed, the optimizer included."""
        return np.asarray(np.sum([self.by_step(name) for name in COMPUTED], axis=0))
