"""The ranks of a job as an array over its axes, and their groups.

Ranks that synchronise inside a pass (cp, ep, tp) are the *members* of one pipeline
position. Pipelines that meet only when gradients are reduced are *lanes*. The data
parallel position is ``lane * ep + (position in the expert group)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.layout import ParallelLayout

from ..tables.arrays import IntArray
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
