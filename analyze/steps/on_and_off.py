"""By how much steps in which something is so are longer than the other steps of the same ranks.

What comes and goes shows its cost by itself, whatever a replay says: both kinds of steps see the
same machine. But all that differs between them is in the difference: what else is slow in the same
steps makes it too large, and what is slow in the others makes it too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from ..arrays import BoolArray, FloatArray
from .windows import StepWindows

MIN_STEPS = 4
"""Least number of steps of either kind."""
MIN_RUNS = 2
"""Least number of times that it comes: what has changed once may have changed for another reason."""

_F_90 = {1: 39.86, 2: 8.53}
"""The 90 % quantile of F with one and so many degrees of freedom."""


class Longer(NamedTuple):
    """Steps with something against those without."""

    steps: int
    others: int
    longer_ns: float
    """Difference of their means, averaged over the ranks."""
    error_ns: float
    """Its standard error (Welch)."""

    def of_mean_step(self, deviates: float = 0.0) -> float:
        """Return by how much they make the mean step longer, ns.

        Args:
            deviates: Standard errors to add.
        """
        part = self.steps / (self.steps + self.others)
        return part * (self.longer_ns + deviates * self.error_ns)


def longer_steps(windows: StepWindows, runs: Sequence[tuple[int, int]]) -> Longer | None:
    """Compare the steps of some runs with the others; None where that tells nothing.

    Args:
        windows: The analysed steps.
        runs: First and last step of each run.
    """
    if not windows.has_marks or len(runs) < MIN_RUNS:
        return None
    frame = windows.frame
    length = (frame["end_ns"] - frame["start_ns"]).groupby(frame["step"].to_numpy()).mean()
    steps = length.index.to_numpy()
    inside = np.zeros(len(steps), dtype=bool)
    for first, last in runs:
        inside |= (steps >= first) & (steps <= last)
    with_it, without = length[inside], length[~inside]
    if min(len(with_it), len(without)) < MIN_STEPS:
        return None
    error = sqrt(with_it.var() / len(with_it) + without.var() / len(without))
    return Longer(len(with_it), len(without), float(with_it.mean() - without.mean()), float(error))


def longer_beyond_chance(
    lengths_ns: FloatArray, steps_with: Sequence[BoolArray]
) -> list[float] | None:
    """Return by how much steps with each of some things are longer than those without, ns.

    None where the steps are too few, or too much alike, to tell that from chance.

    Least squares over runs of alike steps, by their number of steps: neighbours are alike, and a
    drift is no noise. Of a difference ``d`` with standard error ``s`` from ``n`` degrees of freedom
    the part is returned that exceeds what chance makes, ``max(0, 1 - n / (n - 2) s^2 / d^2)`` (the
    positive part of Efron and Morris, *Journal of the American Statistical Association* 1973, for
    one mean; under chance ``d^2 / s^2`` has the mean ``n / (n - 2)``). From one or two degrees, where
    that has no mean, its 90 % quantile takes that place.

    Args:
        lengths_ns: Length of every step.
        steps_with: Which of them have each thing, one array a thing.
    """
    if not len(lengths_ns):
        return None
    had = np.column_stack(steps_with).astype(np.float64)
    begins = np.append(True, (had[1:] != had[:-1]).any(axis=1))
    run = np.cumsum(begins) - 1
    steps = np.bincount(run)
    table = np.column_stack([np.bincount(run, lengths_ns) / steps, had[begins]])
    table = (table - np.average(table, axis=0, weights=steps)) * np.sqrt(steps)[:, None]
    values, columns = table[:, 0], table[:, 1:]
    degrees = len(steps) - 1 - int(np.linalg.matrix_rank(columns))
    if degrees < 1:
        return None
    # Things that are always there together have no solution of their own: each gets an equal part.
    inverse = np.linalg.pinv(columns.T @ columns, rcond=1e-9, hermitian=True)
    fitted = inverse @ columns.T @ values
    variance = float(((values - columns @ fitted) ** 2).sum()) / degrees
    ratio = _F_90.get(degrees) or degrees / (degrees - 2)
    chance = ratio * variance * np.diag(inverse)
    with np.errstate(invalid="ignore", divide="ignore"):
        beyond = np.maximum(0.0, 1.0 - chance / fitted**2) * fitted
    longer: list[float] = np.nan_to_num(beyond).tolist()
    return longer
