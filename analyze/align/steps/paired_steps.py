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

from ...tables.arrays import BoolArray, FloatArray
from ...tables.centres import without_outliers
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
    """Difference of their means, averaged over the ranks, bad steps clipped."""
    error_ns: float
    """Its standard error (Welch)."""
    bad_steps: int = 0
    """Steps of either kind whose length was clipped."""
    bad_ns: tuple[float, float] = (0.0, 0.0)
    """By how much the difference may be less, and more, as bad steps are counted: as they were recorded,
    or as steps that would have been as long without it."""

    def of_mean_step(self, deviates: float = 0.0) -> float:
        """Return by how much they make the mean step longer, ns.

        Args:
            deviates: Standard errors to add.
        """
        return self._part * (self.longer_ns + deviates * self.error_ns)

    def range_of_mean_step(self, deviates: float = 0.0) -> tuple[float, float]:
        """Return the least and the most of that, however bad steps are counted, ns.

        Args:
            deviates: Standard errors beyond, either way.
        """
        less_ns, more_ns = self.bad_ns
        low, high = (self.of_mean_step(sign * deviates) for sign in (-1, 1))
        return low - self._part * less_ns, high + self._part * more_ns

    @property
    def _part(self) -> float:
        return self.steps / (self.steps + self.others)


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
    if min(inside.sum(), (~inside).sum()) < MIN_STEPS:
        return None
    return _compared(length.to_numpy(dtype=np.float64), inside)


def _compared(recorded: FloatArray, inside: BoolArray) -> Longer:
    """Compare lengths of steps with and without something, ns."""
    used = clipped(recorded, [inside])
    with_it, without = used[inside], used[~inside]
    longer_ns = float(with_it.mean() - without.mean())
    error = sqrt(with_it.var(ddof=1) / len(with_it) + without.var(ddof=1) / len(without))
    is_bad = used != recorded
    beyond_ns = float(recorded[inside].mean() - recorded[~inside].mean()) - longer_ns
    hidden_ns = float(is_bad[inside].mean()) * max(longer_ns, 0.0)
    return Longer(
        len(with_it),
        len(without),
        longer_ns,
        float(error),
        int(is_bad.sum()),
        (max(0.0, hidden_ns, -beyond_ns), max(0.0, beyond_ns)),
    )


def clipped(lengths_ns: FloatArray, steps_with: Sequence[BoolArray]) -> FloatArray:
    """Return lengths of steps without outliers among those that are with the same things.

    By median and median absolute deviation: a few bad steps of either kind move neither.

    Args:
        lengths_ns: Length of every step.
        steps_with: Which of them have each thing, one array a thing.
    """
    kind = np.unique(np.column_stack(steps_with), axis=0, return_inverse=True)[1].reshape(-1)
    return without_outliers(lengths_ns, kind)


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
