"""Single steps of single ranks that say nothing of what is usual.

Such a step is scored as any other one. But it counts as what its work leads to expect in the means
that ranks are expected to take, and it tells nobody how much work the step was: a rank that pauses
for ten steps' time once would make the healthy stages of its replica look fast there and slow in
all others.
"""

from __future__ import annotations

import numpy as np

from ...tables.arrays import FloatArray
from .noise import NOISE_FLOOR
from .normalise import Line
from .stretches import REACH, shared

STRAY = 2.0 * REACH
"""Deviations from which on a single step strays: far beyond what noise of healthy steps reaches,
whose means are best left as they are."""
TO_DEVIATION = 1.4826
"""Standard deviation of normal values over their median distance from the median."""


def outlier_factors(means: FloatArray, line: Line) -> FloatArray:
    """Return by what factor single steps [step, lane, replica, place] stray; 1 for the others.

    Args:
        means: Mean durations [step, lane, replica, place, kind]; NaN where absent.
        line: How places follow each other's work.
    """
    excess = means / _median(means)
    if line.tells:
        relative = np.moveaxis(excess, 0, -1)
        model, _ = line.expected(relative - 1.0)
        excess = np.moveaxis(relative / model, -1, 0)
    known = np.isfinite(excess)
    count = np.maximum(known.sum(axis=-1), 1)
    level = np.where(known, excess, 0.0).sum(axis=-1) / count
    level = np.where(known.any(axis=-1), level, np.nan)
    factor = level / _median(level)
    level = factor - 1.0
    spread = TO_DEVIATION * _median(np.abs(level))
    usual = np.nanmedian(spread) if np.isfinite(spread).any() else NOISE_FLOOR
    reach = STRAY * np.maximum(np.fmax(spread, usual), NOISE_FLOOR)
    level = np.where(np.isfinite(level), level, -np.inf)
    is_outlier = level > reach
    # Mostly no rank strays, and nobody has to be asked about its neighbours.
    strays = is_outlier.any(axis=0)
    is_outlier[:, strays] &= shared(level[:, strays]) <= reach[strays]
    return np.where(is_outlier, factor, 1.0)


def _median(values: FloatArray) -> FloatArray:
    """Return the median over the steps; NaN where nothing is known."""
    laid = values.reshape(len(values), -1).T.copy()
    count = np.isfinite(laid).sum(axis=1)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(values) - 1)
    # NaN comes last. Mostly the same steps are known of all.
    laid.partition(np.unique(np.append(low, high)), axis=1)
    rows = np.arange(len(laid))
    return np.asarray((laid[rows, low] + laid[rows, high]) / 2).reshape(values.shape[1:])
