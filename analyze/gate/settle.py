"""The settled part of a run: what is left after warm-up, and whether it still drifts.

The cut is that of MSER-5 (White 1997; Franklin and White 2008): of batches of five steps, drop as many
from the front as make the standard error of the rest least. Batches are medians, so one stall moves
nothing. What is left drifts where its halves differ by more than ``DRIFT`` and by more than chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from ..tables.arrays import FloatArray
from .student import quantile

LEAST_STEPS = 5
"""Fewer steps make no median worth comparing."""
BATCH = 5
DRIFT = 0.005
"""Between the halves of a run; 46 of 396 published MLPerf runs drift by more."""
_SURE = 0.995
"""Two-sided 1 %: one of a hundred settled runs may be called drifting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Where a run has settled."""

    start: int
    """Index of the first step of the settled part."""
    drift_frac: float
    """Median of its second half over that of its first half, less one."""
    is_settled: bool
    """False where it drifts to its end."""


def settle(values: FloatArray) -> Settled:
    """Return where the step times of one run have settled.

    Args:
        values: Step times in the order of the steps; at least ``LEAST_STEPS``.
    """
    start = _cut(values) if len(values) >= 4 * BATCH else min(1, len(values) - LEAST_STEPS)
    rest = values[start:]
    drift, error = _drift(rest)
    drifts = abs(drift) > DRIFT and abs(drift) > error
    return Settled(start=start, drift_frac=drift, is_settled=not drifts)


def _cut(values: FloatArray) -> int:
    """Return how many steps MSER-5 drops; at most half of them."""
    batches = np.median(values[: len(values) // BATCH * BATCH].reshape(-1, BATCH), axis=1)
    count = len(batches)
    left = np.arange(count, 0, -1)
    sums, squares = (np.cumsum(part[::-1])[::-1] for part in (batches, batches**2))
    spread = np.maximum(squares / left - (sums / left) ** 2, 0.0)
    return BATCH * int(np.argmin((spread / left)[: count // 2 + 1]))


def _drift(values: FloatArray) -> tuple[float, float]:
    """Return the change from one half to the other, and how large chance makes it.

    The error is of batch medians, which are nearly independent where single steps are not.
    """
    half = len(values) // 2
    if half < 2 * BATCH:
        return 0.0, 0.0
    first, second = values[:half], values[len(values) - half :]
    before = float(np.median(first))
    drift = float(np.median(second)) / before - 1
    parts = [
        np.median(part[: half // BATCH * BATCH].reshape(-1, BATCH), axis=1) / before
        for part in (first, second)
    ]
    spread = sum(float(part.var(ddof=1)) / len(part) for part in parts)
    freedom = 2 * (half // BATCH) - 2
    return drift, quantile(_SURE, freedom) * sqrt(spread)
