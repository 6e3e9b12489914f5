"""How far the removal gain of a cause may be off by what was recorded.

The work of a rank passes to the step at most one to one, so an error of what a rank loses is
at most one of the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Axis

from ...tables.trace import Trace, position_of_ranks
from .effects import Expected, Work
from .shapley_player import Player
from .workers import OTHERS

CERTAIN = 1.96
"""Standard errors on either side that hold 95 % of normal values."""
MIN_ERRORS = 4.0
"""Standard errors that chance does not make (3e-5 a replica)."""


class Off(NamedTuple):
    """How far the removal gain of a cause may be off."""

    less_ns: float
    """It may be so much less, per step."""
    more_ns: float
    share: float = 0.0
    """And so much of itself less or more."""
    is_most: bool = False
    """It is the most that it can be, and nothing tells the least."""

    def interval(self, gain_ns: float) -> tuple[float, float]:
        """Return the ends of the interval of a gain."""
        if self.is_most:
            return 0.0, gain_ns
        own = self.share * gain_ns
        return gain_ns - float(np.hypot(self.less_ns, own)), gain_ns + float(
            np.hypot(self.more_ns, own)
        )


def gain_errors(
    trace: Trace, work: Work, expected: Expected, players: list[Player], ranks: pd.DataFrame
) -> list[Off | None]:
    """Return how far off the gain of each cause may be; None where nothing tells.

    Args:
        trace: The capture.
        work: The recorded work by cell.
        expected: What each cell would have taken on a healthy rank.
        players: All causes.
        ranks: rank, excess_ns, peer_ns and z of each rank.
    """
    levels = _levels(trace, work, expected)
    of_data = None if levels is None else _of_data(levels)
    of_rank = ranks.set_index("rank")
    error = (CERTAIN * of_rank["excess_ns"] / of_rank["z"]).abs()
    share = error * 0.0
    if levels is not None and levels.are_ranks:
        # Of one that was compared step by step nothing is left that would show its own.
        usual = levels.error.clip(lower=levels.error.median())
        share = usual * of_rank["peer_ns"] / of_rank["excess_ns"].abs()
    return [
        of_data if player.kind == "sequence_imbalance" else _of_ranks(player, error, share)
        for player in players
    ]


def _of_ranks(player: Player, error_ns: pd.Series, share: pd.Series) -> Off | None:
    """Return the error of slow ranks, which are compared with others; of a cause that is a bound, that.

    The step is a convex function of what a rank loses: what is taken too much or too little returns
    no more than the whole does on average.
    """
    if player.is_most:
        return Off(0.0, 0.0, is_most=True)
    if player.kind not in ("straggler_rank", OTHERS):
        return None
    ranks = player.where["ranks"] if "ranks" in player.where else [player.where["rank"]]
    worst = float(error_ns[ranks].max())
    return Off(worst, worst, float(share[ranks].max())) if np.isfinite(worst) else None


class _Levels(NamedTuple):
    """By how much the data of each replica is known to exceed the mean, with the error of that."""

    mean: pd.Series
    """As a share of what its work would be otherwise; by rank where each is a replica."""
    error: pd.Series
    are_ranks: bool
    work_ns: float
    """The most work of a rank in a step, of the mean step."""


def _of_data(levels: _Levels) -> Off | None:
    """Return the error of unequal data: what replicas differ by on average may be their ranks' own.

    Evening out the data returns so much less then. That all ranks of a replica are slow alike is taken
    for possible only where chance does not make its sequences so long.
    """
    most, error = (levels.mean + levels.error).max(), float(levels.error.max())
    if not levels.are_ranks and not (levels.mean > MIN_ERRORS / CERTAIN * levels.error).any():
        return None
    return Off(max(0.0, float(most)) * levels.work_ns, error * levels.work_ns)


def _levels(trace: Trace, work: Work, expected: Expected) -> _Levels | None:
    """Return how the replicas differ on average.

    By chance the sequences of one are longer on average, and so a replica whose sequences are and one
    whose ranks are slower leave the same record. None without unequal data, where the training code
    said how much work it is, or with one replica.
    """
    layout, unequal_ns = trace.layout, expected.unequal_ns
    if layout is None or layout.dp < 2 or unequal_ns is None or expected.is_stated:
        return None
    replica = position_of_ranks(layout, Axis.DP, trace.ranks)
    are_ranks = len(set(replica.values())) == len(replica)
    cells = work.cells[["rank", "step", "work_ns"]].assign(unequal_ns=unequal_ns)
    cells["group"] = cells["rank"] if are_ranks else cells["rank"].map(replica)
    sums = cells.groupby(["group", "step"])[["work_ns", "unequal_ns"]].sum()
    even = (sums["work_ns"] - sums["unequal_ns"]).groupby(level="group").transform("mean")
    level = (sums["unequal_ns"] / even.where(even > 0)).groupby(level="group")
    error = CERTAIN * level.std() / level.size() ** 0.5
    per_step = cells.groupby(["rank", "step"])["work_ns"].sum().groupby(level="rank").mean()
    return _Levels(level.mean(), error, are_ranks, float(per_step.max()))
