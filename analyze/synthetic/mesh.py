"""The ranks of a synthetic job as an array over its axes, and their process groups.

Ranks that synchronise inside a pass (cp, ep, tp) are the *members* of one pipeline
position. Pipelines that meet only when gradients are reduced are *lanes*. The data
parallel position is ``lane * ep + (position in the expert group)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import message_to_cell
from meshscope.probe.schema.tables import GROUP

from ..tables.arrays import IntArray
from ..wording.message import message
from .faults import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Arrays over (pipeline position, member, lane)."""

    layout: ParallelLayout
    rank: IntArray
    """Global rank."""
    at: dict[str, IntArray]
    """Position on each axis."""
    member_group: dict[str, IntArray]
    """For each inner axis the group of each member, numbered from 0, ``(members,)``."""

    @property
    def members(self) -> int:
        """Return how many ranks share one pipeline position of one lane."""
        return int(self.rank.shape[1])

    @property
    def lanes(self) -> int:
        """Return how many pipelines are independent inside a step."""
        return int(self.rank.shape[2])

    def group_of(self, axis: str) -> IntArray:
        """Return the first rank of the group that each rank is in; it names the group."""
        moved = dict(self.at)
        if axis == "dp":
            moved["dp"] = np.zeros_like(self.rank)
        elif axis == "ep":
            moved["dp"] = self.at["dp"] // self.layout.ep * self.layout.ep
        else:
            moved[axis] = np.zeros_like(self.rank)
        return rank_at(self.layout, moved)

    def selected(self, fault: Fault, ranks_per_host: int) -> npt.NDArray[np.bool_]:
        """Return which ranks a fault is about: those at every target that it names."""
        chosen = np.ones(self.rank.shape, dtype=bool)
        if fault.rank is not None:
            chosen &= self.rank == fault.rank
        if fault.host is not None:
            chosen &= self.rank // ranks_per_host == fault.host
        for axis in ("tp", "pp", "dp"):
            position = getattr(fault, axis)
            if position is not None:
                chosen &= self.at[axis] == position
        return chosen


def make_mesh(layout: ParallelLayout) -> Mesh:
    """Return the arrays of a layout."""
    cp, ep, tp, lanes = layout.cp, layout.ep, layout.tp, layout.dp // layout.ep
    shape = (layout.pp, cp, ep, tp, lanes)
    pp_at, cp_at, ep_at, tp_at, lane = (
        axis.reshape(layout.pp, cp * ep * tp, lanes) for axis in np.indices(shape)
    )
    at = {"pp": pp_at, "cp": cp_at, "ep": ep_at, "tp": tp_at, "dp": lane * ep + ep_at}
    member = np.arange(cp * ep * tp)
    inner = {
        "tp": member // tp,
        "cp": member % (ep * tp),
        "ep": member // (ep * tp) * tp + member % tp,
    }
    return Mesh(layout=layout, rank=rank_at(layout, at), at=at, member_group=inner)


def rank_at(layout: ParallelLayout, at: dict[str, IntArray]) -> IntArray:
    """Return the global ranks at the given positions (``ParallelLayout.rank`` on arrays)."""
    rank = np.zeros_like(at["pp"])
    for axis in layout.order.split("-"):
        rank = rank * getattr(layout, axis) + at[axis]
    return rank


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
            "evidence": message_to_cell(message("axis.synthetic", order=mesh.layout.order)),
        }
    )
    return GROUP.conform(pa.Table.from_pandas(frame, preserve_index=False))
