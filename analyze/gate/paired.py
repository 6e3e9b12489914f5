"""Pairs of runs made in turn: what both runs of a pair share, such as the hour and the nodes, cancels.

The interval is that of Student's t for the differences of logarithms. At several looks its level is that of
``spending``, so it holds at all of them together (repeated confidence intervals, Jennison and Turnbull 1989).

So looking early costs no false alarms. The error is spent by the function of O'Brien-Fleming type of Lan and DeMets (1983, Biometrika 70):
``2 (1 - Phi(z / sqrt t))`` with ``z = Phi^-1(1 - error / 2)`` at the share ``t`` of the runs. The boundary of
each look follows from what is left below the earlier ones, by the recursive integration of Armitage, McPherson
and Rowe (1969, JRSS A 132). For differences with an unknown spread the level of each look is that of a t
test (Jennison and Turnbull 2000, section 3.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log1p, sqrt
from statistics import NormalDist

import numpy as np

from ..tables.arrays import FloatArray
from .interval import LEAST_SPREAD, Change, Estimate, quantile
from .judge import ERROR, MOST_RUNS, Compared, checked
from .results import Check, Reason, Verdict

LEAST_PAIRS = 3
"""With fewer pairs no early level can be reached."""
_NORMAL = NormalDist()
_POINTS = 801
_REACH = 8.0
"""Standard deviations of the grid; beyond it lies less than 1e-15."""


def looks(pairs: int) -> tuple[int, ...]:
    """Return after how many pairs to look: at about 60 %, 80 % and all of them."""
    early = (max(LEAST_PAIRS, round(pairs * share)) for share in (0.6, 0.8))
    return tuple(sorted({*(at for at in early if at < pairs), pairs}))


@lru_cache(maxsize=64)
def levels(shares: tuple[float, ...], error: float) -> tuple[float, ...]:
    """Return the one-sided level of each look.

    Args:
        shares: Information at each look, rising to 1.
        error: Chance to cross any boundary where there is no change.
    """
    return tuple(1 - _NORMAL.cdf(bound) for bound in boundaries(shares, error))


def boundaries(shares: Sequence[float], error: float) -> tuple[float, ...]:
    """Return the boundary of each look for a standard normal statistic; see ``levels``."""
    found: list[float] = []
    spent, grid, density, before = 0.0, np.empty(0), np.empty(0), 0.0
    for share in shares:
        part = max(spend(share, error) - spent, 1e-15)
        spent += part
        bound = _bound(part, share, before, grid, density)
        found.append(bound)
        grid, density = _kept(bound, share, before, grid, density)
        before = share
    return tuple(found)


def spend(share: float, error: float) -> float:
    """Return how much of a one-sided error is spent at a share of the information."""
    if share <= 0:
        return 0.0
    return 2 * (1 - _NORMAL.cdf(_NORMAL.inv_cdf(1 - error / 2) / sqrt(share)))


def _bound(
    part: float, share: float, before: float, grid: FloatArray, density: FloatArray
) -> float:
    """Return where the chance to cross at this look, and not earlier, is ``part``; by bisection."""
    low, high = -_REACH, _REACH
    for _ in range(60):
        middle = (low + high) / 2
        above = _above(middle * sqrt(share), share - before, grid, density)
        low, high = (middle, high) if above > part else (low, middle)
    return (low + high) / 2


def _above(bound: float, step: float, grid: FloatArray, density: FloatArray) -> float:
    """Return the chance that the sum is above a bound after a step of the information."""
    if not len(grid):
        return 1 - _NORMAL.cdf(bound / sqrt(step))
    tails = np.array([1 - _NORMAL.cdf(value) for value in (bound - grid) / sqrt(step)])
    return float(np.trapezoid(density * tails, grid))


def _kept(
    bound: float, share: float, before: float, grid: FloatArray, density: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the density of the sum below the bound, on a grid."""
    ahead = np.linspace(-_REACH * sqrt(share), bound * sqrt(share), _POINTS)
    spread = sqrt(share - before)
    if not len(grid):
        return ahead, _density(ahead / spread) / spread
    steps = _density((ahead[:, None] - grid[None, :]) / spread) / spread
    sums: FloatArray = np.asarray(np.trapezoid(steps * density[None, :], grid, axis=1))
    return ahead, sums


def _density(values: FloatArray) -> FloatArray:
    result: FloatArray = np.exp(-0.5 * values**2) / sqrt(2 * np.pi)
    return result


PAIRED_ERROR = 0.8 * ERROR
"""Of each bound over all looks. Of t tests at levels for a normal statistic up to 1.15 times as many
err (simulated for 3 to 20 pairs); the classes have the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the pairs that there are."""

    pairs: int
    level: float
    """One-sided error of the interval at this look."""
    is_last: bool


def planned_looks(pairs: int) -> tuple[Look, ...]:
    """Return the looks at so many planned pairs; at most three."""
    at = looks(pairs)
    shares = tuple(count / pairs for count in at)
    return tuple(
        Look(pairs=count, level=level, is_last=count == pairs)
        for count, level in zip(at, levels(shares, PAIRED_ERROR), strict=True)
    )


def paired_check(one: Compared, look: Look) -> Check:
    """Return the check of a metric whose runs are pairs, in their order; two pairs or more.

    Before the last look only an interval that lies on one side of the margin decides.
    """
    differences = one.candidate - one.base
    count = len(differences)
    spread = max(float(differences.std(ddof=1)), LEAST_SPREAD)
    change = float(differences.mean())
    estimate = Estimate(change=change, error=spread / sqrt(count), freedom=count - 1.0)
    check = checked(one, Change((estimate,)), look.level)
    if check.reason is Reason.NO_LOSS_SEEN and not look.is_last:
        check = replace(check, verdict=Verdict.INCONCLUSIVE, reason=Reason.MORE_RUNS)
    if check.verdict is not Verdict.INCONCLUSIVE:
        return check
    more = _more_pairs(abs(change - log1p(one.margin)), spread, count, look.level)
    reason = Reason.AT_MARGIN if more is None else Reason.MORE_RUNS
    return replace(check, more_runs=more, reason=reason)


def _more_pairs(gap: float, spread: float, count: int, level: float) -> int | None:
    """Return how many more pairs would decide; None if too many."""
    for more in range(1, MOST_RUNS + 1):
        pairs = count + more
        if quantile(1 - level, pairs - 1) * spread / sqrt(pairs) < gap:
            return more
    return None


def decides(check: Check | None) -> bool:
    """Return whether a look ends the runs: the step is found slower, faster, or within the margin."""
    return check is not None and check.verdict is not Verdict.INCONCLUSIVE
