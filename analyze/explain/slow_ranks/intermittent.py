"""Ranks that are slow in single steps, more often than by accident.

Each step of a rank that stands out from its noise by itself (``slow_part``) is a pause. Healthy ranks
pause as well, now and then. How often is not known beforehand: the pauses of all other ranks tell,
and the steps in which the rank itself is as far on the other side, which is noise of its own. With
a rate that is itself uncertain the number of pauses is beta-binomial (Raiffa and Schlaifer,
*Applied Statistical Decision Theory* 1961).
"""

from __future__ import annotations

from math import exp, lgamma

import msgspec
import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .conclude import Measured
from .cube import Cube, IntArray
from .settings import DetectionSettings
from .slow_part import SURE, slow_steps
from .stretches import SHORTEST
from .window import Scored

USUAL_STEPS = 100.0
"""A healthy rank pauses in one step of so many, as if as many steps had shown it."""
_QUARTER, _TO_MEDIAN = 0.25, 0.6745
"""A rank that is slow in half of its steps is as usual in the other half: its level is known from the
lowest quarter, which lies this many deviations below the median of usual steps."""


class Pauses(msgspec.Struct, frozen=True):
    """The steps of all ranks [step, rank] that stand out by themselves."""

    series: FloatArray
    """Scores against what is usual."""
    slow: BoolArray
    fast: BoolArray
    """The same on the other side."""
    deviation: float
    """Standard deviation of a step of a usual rank: one that is slow every other step has a noise
    of its own that hides this."""


def pauses_of(scored: Scored, *, of_own_level: bool) -> Pauses:
    """Return the steps of all ranks that stand out.

    Args:
        scored: The scores of a window.
        of_own_level: From the level that a rank has in its other steps, since a constant difference
            to its replicas is no pause. Else from the replicas, where there are any.
    """
    deviation = float(np.median(scored.doubt.step))
    # Of two ranks alone either is as far from the other, and only their own steps tell who changes.
    compared = np.isfinite(scored.peers).any(axis=0) & (scored.peers.shape[1] > 2)
    series = np.where(compared, scored.peers, scored.own)
    known = np.where(np.isfinite(series).any(axis=0), series, 0.0)
    # One that leaves out what is not known takes the ranks one by one.
    quantile = np.nanquantile if np.isnan(known).any() else np.quantile
    usual = 1.0 + quantile(known, _QUARTER, axis=0) + _TO_MEDIAN * deviation
    # Own scores are relative to the mean of the window, which holds the slow steps.
    series = np.where(compared & (not of_own_level), series, (1.0 + series) / usual - 1.0)
    return Pauses(series, _outstanding(series, scored), _outstanding(-series, scored), deviation)


def _outstanding(series: FloatArray, scored: Scored) -> BoolArray:
    deviation, found = float(np.median(scored.doubt.step)), np.zeros(series.shape, dtype=bool)
    size = SURE * deviation
    for rank in np.flatnonzero((series > size / 2).any(axis=0)).tolist():
        found[:, rank] = slow_steps(series[:, rank], size, deviation, scored.doubt.noise.inflation)
    return found


def most_often(
    pauses: Pauses, cube: Cube, known: list[int], settings: DetectionSettings
) -> tuple[int, float] | None:
    """Return the rank that pauses more often than by accident, and the chance of as many.

    None where no rank does. The rarest one, if there are several. Two ranks of one replica that
    both pause may have had more work in the same steps, or one is slow in some steps and makes the
    other look slow in the rest, for it tells the work of that one: none of them is blamed.

    Args:
        pauses: Those of all ranks.
        cube: Where the ranks are.
        known: Ranks that were found slow.
        settings: What a false suspect may cost.
    """
    seen = np.isfinite(pauses.series)
    judged = np.ones(seen.shape[1], dtype=bool)
    judged[known] = False
    slow, steps = pauses.slow.sum(axis=0), seen.sum(axis=0)
    accidents = np.where(judged, slow, 0).sum() - slow + pauses.fast.sum(axis=0)
    judged_steps = np.where(judged, steps, 0).sum()
    best: tuple[int, float] | None = None
    often = np.flatnonzero(judged & (slow >= SHORTEST))
    for rank in often[~_with_their_replica(slow, often, cube)].tolist():
        chance = chance_of_pauses(
            int(slow[rank]), int(steps[rank]), int(accidents[rank]), int(judged_steps)
        )
        if best is None or chance < best[1]:
            best = rank, chance
    allowed = settings.false_alarms_per_window / settings.judged(seen.shape[1])
    return best if best is not None and best[1] < allowed else None


def _with_their_replica(slow: IntArray, ranks: IntArray, cube: Cube) -> BoolArray:
    """Return which ranks have another one in their replica with at least half as many pauses."""
    same = (cube.lane[ranks, None] == cube.lane) & (cube.replica[ranks, None] == cube.replica)
    same[np.arange(len(ranks)), ranks] = False
    return np.asarray(2 * np.where(same, slow, 0).max(axis=1, initial=0) >= slow[ranks])


def chance_of_pauses(pauses: int, steps: int, accidents: int, judged_steps: int) -> float:
    """Return the chance of so many pauses, or more, in the steps of a healthy rank.

    Args:
        pauses: Those of the rank.
        steps: Its steps.
        accidents: Pauses elsewhere.
        judged_steps: Steps in which these were seen.
    """
    some, rest = 1.0 + accidents, USUAL_STEPS - 1.0 + max(judged_steps - accidents, 0)
    whole = _log_beta(some, rest)
    logs = (
        lgamma(steps + 1)
        - lgamma(k + 1)
        - lgamma(steps - k + 1)
        + _log_beta(some + k, rest + steps - k)
        - whole
        for k in range(pauses, steps + 1)
    )
    return min(1.0, sum(map(exp, logs)))


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def measured_in(pauses: Pauses, scored: Scored, rank: int) -> Measured:
    """Return how slow a rank is in its pauses, and how certain that is."""
    series = pauses.series[pauses.slow[:, rank], rank]
    lasting = float(np.nan_to_num(scored.doubt.lasting[rank]))
    error = np.sqrt(pauses.deviation**2 / len(series) + lasting**2)
    degrees = scored.doubt.noise.degrees
    return Measured(slowdown=float(series.mean()), error=float(error), degrees=degrees)
