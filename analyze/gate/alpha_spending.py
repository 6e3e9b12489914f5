"""Levels of several looks at one comparison, so that looking early costs no false alarms.

The error is spent by the function of O'Brien-Fleming type of Lan and DeMets (1983, Biometrika 70):
``2 (1 - Phi(z / sqrt t))`` with ``z = Phi^-1(1 - error / 2)`` at the share ``t`` of the runs. The boundary of
each look follows from what is left below the earlier ones, by the recursive integration of Armitage, McPherson
and Rowe (1969, JRSS A 132). For differences with an unknown spread the level of each look is that of a t
test (Jennison and Turnbull 2000, section 3.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from statistics import NormalDist

import numpy as np

from ..tables.arrays import FloatArray

MOST_LOOKS = 3
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
