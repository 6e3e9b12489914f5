"""Rates in the phases of a step from counters that are read less often than phases change.

Bytes between two samples are the sum over phases of rate x time of the phase in between. Ordinary
least squares over all intervals gives the rates with their standard errors (Greene, Econometric
Analysis, chapter 4). Intervals pool over like steps in this way. Where all hold the same mix of
phases, as with steps much shorter than the interval, the errors are large: nothing is resolved.
Rates below 0 are set to 0, and the others fitted again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...tables.arrays import FloatArray

LEAST_SPARE = 3
"""Intervals beyond the number of unknown rates."""
_WORST_CONDITION = 1e6
"""Above it phases that always come together have rates that are noise."""


class Rates(NamedTuple):
    """Rates by phase with their standard errors, bytes/s; NaN where not resolved."""

    rate: FloatArray
    error: FloatArray


def phase_rates(grown_bytes: FloatArray, inside_ns: FloatArray) -> Rates:
    """Return the rates in phases.

    Args:
        grown_bytes: (interval,) growth of a counter, NaN unknown.
        inside_ns: (interval, phase) time of each phase in the interval.

    Returns:
        (phase,) each; NaN where a phase is absent or the intervals do not separate it.
    """
    known = np.isfinite(grown_bytes)
    amount, seconds = grown_bytes[known], inside_ns[known] / 1e9
    count = inside_ns.shape[1]
    rate, error = np.full(count, np.nan), np.full(count, np.nan)
    present = np.flatnonzero(seconds.sum(axis=0) > 0)
    free = present
    while len(free):
        if len(amount) < len(free) + LEAST_SPARE:
            return Rates(rate, error)
        used = seconds[:, free]
        scale = np.sqrt((used**2).sum(axis=0))
        if np.linalg.cond(used / scale) > _WORST_CONDITION:
            return Rates(rate, error)
        found, *_ = np.linalg.lstsq(used / scale, amount, rcond=None)
        if (found >= 0).all():
            break
        free = free[found > found.min()]
    else:
        return Rates(rate, error)
    rest = amount - (used / scale) @ found
    spread = float(rest @ rest) / (len(amount) - len(free))
    inverse = np.linalg.inv((used / scale).T @ (used / scale))
    rate[present], error[present] = 0.0, 0.0
    rate[free] = found / scale
    error[free] = np.sqrt(np.maximum(spread * np.diag(inverse), 0.0)) / scale
    return Rates(rate, error)
