"""The process groups of a synthetic job and their names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.tables import GROUP

from ..tables.arrays import IntArray
from .mesh import Mesh

AXES = ("tp", "pp", "dp", "cp", "ep")
"""Axes that have groups, in the order of the codes of the ``axis`` column."""


class GroupNames:
    """Every group of more than one rank, with the code that stands for its name."""

    def __init__(self, mesh: Mesh) -> None:
        self.words: list[str] = []
        """``<axis>-<first rank>`` by code."""
        self._code: dict[str, IntArray] = {}
        self._members: dict[int, list[int]] = {}
        order = np.argsort(mesh.rank.ravel(), kind="stable")
        for axis in AXES:
            if getattr(mesh.layout, axis) > 1:
                self._add(axis, mesh.group_of(axis).ravel()[order], mesh)

    def code_of(self, axis: str) -> IntArray:
        """Return the code of the group along an axis by rank."""
        return self._code[axis]

    def codes(self, column: pa.ChunkedArray) -> IntArray:
        """Return the codes of a column of group names."""
        position = {word: code for code, word in enumerate(self.words)}
        found: IntArray = column.to_pandas().astype(str).map(position).to_numpy(np.int64)
        return found

    def members(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the code and the ranks of every group along which collectives run."""
        for code, members in self._members.items():
            if not self.words[code].startswith("pp-"):
                yield code, members

    def ranks_of(self, code: int) -> list[int]:
        """Return the ranks of a group in the order of the axis."""
        return self._members[code]

    def _add(self, axis: str, first: IntArray, mesh: Mesh) -> None:
        firsts, own = np.unique(first, return_inverse=True)
        self._code[axis] = own + len(self.words)
        place = np.empty(len(first), np.int64)
        place[mesh.rank.ravel()] = mesh.at["dp" if axis == "ep" else axis].ravel()
        by_group = np.lexsort((place, own)).reshape(len(firsts), -1)
        for rank, members in zip(firsts.tolist(), by_group.tolist(), strict=True):
            self._members[len(self.words)] = members
            self.words.append(f"{axis}-{rank}")


def group_table(mesh: Mesh, names: GroupNames) -> pa.Table:
    """Return the ``group`` table."""
    if not names.words:
        return GROUP.empty()
    frame = pd.DataFrame(
        {
            "group_id": names.words,
            "axis": [word.partition("-")[0] for word in names.words],
            "ranks": [names.ranks_of(code) for code in range(len(names.words))],
            "evidence": f"the layout of the synthetic job ({mesh.layout.order})",
        }
    )
    return GROUP.conform(pa.Table.from_pandas(frame, preserve_index=False))
