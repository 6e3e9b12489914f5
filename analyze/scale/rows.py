"""The rows of some ranks, as one file of the summaries holds them: mostly each rank in the same steps.

Then a column is an array of ranks and steps as it lies in memory, and nothing needs to be sorted or grouped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..tables.arrays import IntArray

Number = TypeVar("Number", np.float32, np.float64)
JOINED_ROWS = 1 << 17
"""Rows that are looked at together, at least where there are as many: 10 MB."""


def joined(parts: Iterable[pa.Table], least_rows: int = JOINED_ROWS) -> Iterator[pa.Table]:
    """Yield the rows of some files together, where these have the same columns: a look at few rows costs as much as one at many."""
    held: list[pa.Table] = []
    for part in parts:
        if held and held[0].column_names != part.column_names:
            yield pa.concat_tables(held).combine_chunks()
            held = []
        held.append(part)
        if sum(map(len, held)) >= least_rows:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()


class Rows:
    """Rows by rank, each rank's in one part; columns that hold nothing but 0 may be left out."""

    def __init__(self, table: pa.Table) -> None:
        """Look where ranks begin, and whether all have the same steps."""
        self._table = table
        self.rank: IntArray = table["rank"].to_numpy()
        self.step: IntArray = table["step"].to_numpy()
        first = np.flatnonzero(np.diff(self.rank, prepend=-1))
        each = len(self.rank) // max(len(first), 1)
        self.ranks: IntArray = self.rank[first].astype(np.int64)
        self.steps: IntArray = self.step[:each].astype(np.int64)
        """Those of the first rank, and of all where ``is_regular``."""
        self.is_regular = self._is_regular(first, each)

    def _is_regular(self, first: IntArray, each: int) -> bool:
        """Return whether all ranks have the same steps, which grow."""
        if not each or len(self.step) != len(first) * each or (np.diff(self.steps) <= 0).any():
            return False
        laid = self.step.reshape(len(first), each)
        return bool((np.diff(first) == each).all() and (laid == laid[0]).all())

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.rank)

    def column(self, name: str) -> npt.NDArray[np.number]:
        """Return a column by row; 0 where it was left out."""
        if name not in self._table.column_names:
            return np.broadcast_to(np.float32(0.0), len(self))
        return np.asarray(self._table[name].to_numpy())

    def total(self, names: Iterable[str], kind: type[Number]) -> npt.NDArray[Number]:
        """Return the sum of some columns by row, each brought to a kind of number first."""
        held = [name for name in names if name in self._table.column_names]
        total: npt.NDArray[Number] = np.zeros(0 if held else len(self), dtype=kind)
        for at, name in enumerate(held):
            values = self.column(name).astype(kind)
            total = np.add(total, values, out=total) if at else values
        return total
