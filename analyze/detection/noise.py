"""How noisy scores are from step to step, and what that lets one see.

Noise is taken from differences between steps, which a constant slow-down does not
touch. Successive steps are alike (temperature, neighbours on the network), so the
mean of n of them is less certain than n independent ones: its variance is
``sigma^2 * inflation / n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, log, sqrt
from statistics import NormalDist

import numpy as np

from .cube import FloatArray

MAX_CORRELATION = 0.9
MIN_INFLATION = 1.2
"""A correlation of a tenth is more than a few tens of steps can rule out."""
POOLED_STEPS = 20.0
"""Weight, in steps, of the noise of all ranks in the noise of one."""
JUMP, DRAWN_IN = 9.0, 3.0
"""A squared difference of more than 9 times the usual one is a change and counts as 3."""
UNLIKE = 4.0
"""A rank whose variance is this much larger is another kind: no stage tells its work, say."""
DIFFERENCE_EFFICIENCY = 2 / 3
"""Share of the degrees of freedom that is left when noise comes from differences of neighbours."""
NOISE_FLOOR = 5e-4
"""Least noise of a step, as a share of its work: integer stamps and clocks are not exact."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of the scores of the ranks."""

    sigma: FloatArray
    """Standard deviation of one step, by rank."""
    inflation: float
    """Steps that count as one, from their correlation; at least 1."""
    degrees: float
    """Degrees of freedom behind ``sigma``."""

    def error(self, steps: float, references: float = np.inf) -> FloatArray:
        """Return the standard error of a mean over steps, by rank.

        Args:
            steps: Steps that are averaged.
            references: How many ranks, or blocks of as many steps, it is compared with.
        """
        variance = self.inflation / steps * (1.0 + 1.0 / references)
        return self.sigma * sqrt(variance)


def noise_of(scores: FloatArray, errors: FloatArray) -> Noise:
    """Return the noise of scores [step, rank].

    Args:
        scores: Score of each rank and step; NaN where absent.
        errors: Its standard error from within the step; used below three steps, where
            steps cannot be compared.
    """
    steps, ranks = scores.shape
    if steps < 3:
        with np.errstate(invalid="ignore"):
            sigma = np.sqrt(np.nanmean(errors**2, axis=0)) if steps else np.full(ranks, np.nan)
        pooled = _finite_median(sigma)
        return Noise(np.maximum(np.fmax(sigma, pooled), NOISE_FLOOR), 1.0, float(4 * ranks))
    near, correlation = _squared_spread(scores, 1), 0.0
    if steps >= 6:
        far = _squared_spread(scores, 2)
        correlation = correlation_from(_finite_mean(near), _finite_mean(far))
    return _combined(near, float(steps), correlation)


def _combined(near: FloatArray, steps: float, correlation: float) -> Noise:
    """Return the noise from half the mean squared difference of neighbouring steps, by rank."""
    own = near / (1.0 - correlation)
    pooled = _finite_median(own)
    weight = (steps - 1) / (steps - 1 + POOLED_STEPS)
    variance = weight * own + (1.0 - weight) * pooled
    variance = np.where(own > UNLIKE * pooled, own, variance)
    variance = np.where(np.isfinite(variance), variance, pooled)
    information = weight**2 + (1.0 - weight) ** 2 / max(int(np.isfinite(own).sum()), 1)
    degrees = max(2.0, DIFFERENCE_EFFICIENCY * (steps - 1) / information)
    inflation = max(MIN_INFLATION, (1.0 + correlation) / (1.0 - correlation))
    return Noise(np.fmax(np.sqrt(variance), NOISE_FLOOR), inflation, degrees)


def correlation_from(near: float, far: float) -> float:
    """Return the lag-1 correlation of a first-order process.

    From half the mean squared difference at lag 1, ``s^2 (1 - r)``, and at lag 2,
    ``s^2 (1 - r^2)``: their ratio is ``1 + r``.
    """
    if not near > 0:
        return 0.0
    return float(np.clip(far / near - 1.0, 0.0, MAX_CORRELATION))


def quantile(chance: float, degrees: float = np.inf) -> float:
    """Return the deviate that noise exceeds with a chance, for a spread that was estimated.

    Student's t by Wallace's approximation, ``sqrt(v (exp(z^2 (v - 1.5) / (v - 1)^2) - 1))``;
    the normal deviate for many degrees of freedom.
    """
    deviate = _NORMAL.inv_cdf(1.0 - max(chance, 1e-15))
    if degrees > 1000:
        return deviate
    v = max(degrees, 2.0)
    return sqrt(v * expm1(min(deviate**2 * (v - 1.5) / (v - 1.0) ** 2, 60.0)))


def chance_of(deviate: float, degrees: float) -> float:
    """Return the chance that noise exceeds a deviate: the inverse of ``quantile``."""
    v = max(degrees, 2.0)
    if v > 1000:
        return 1.0 - _NORMAL.cdf(deviate)
    z = sqrt(log(1.0 + deviate**2 / v) * (v - 1.0) ** 2 / (v - 1.5))
    return 1.0 - _NORMAL.cdf(z if deviate >= 0 else -z)


def _squared_spread(scores: FloatArray, lag: int) -> FloatArray:
    """Return half the mean squared difference of steps a lag apart, outliers drawn in."""
    squares = (scores[lag:] - scores[:-lag]) ** 2 / 2.0
    known = np.isfinite(squares)
    own = np.median(np.where(known, squares, _finite_median(squares)), axis=0)
    usual = np.fmax(own, _finite_median(squares)) / 0.455
    squares = _without_jumps(squares, usual)
    total = np.where(known, squares, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known.any(axis=0), total / known.sum(axis=0), np.nan)


def _without_jumps(squares: FloatArray, usual: FloatArray) -> FloatArray:
    """Return squares with those of changes, which are no noise, drawn in to a usual large one.

    A change is in one difference of lag 1 and in two of lag 2, so that it would look
    like a correlation.
    """
    jump = (squares > JUMP * usual) & (usual > 0)
    return np.where(jump, DRAWN_IN * usual, squares)


def _finite_mean(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else np.nan


def _finite_median(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else np.nan


class RunningNoise:
    """The same from one step at a time, in memory of a few numbers a rank."""

    def __init__(self, ranks: int, memory: int) -> None:
        """Begin without steps.

        Args:
            ranks: Number of ranks.
            memory: Steps after which old noise is forgotten.
        """
        self._memory = memory
        self._before: list[FloatArray] = []
        self._near = np.zeros(ranks)
        self._far = np.zeros(ranks)
        self._counts = [np.zeros(ranks), np.zeros(ranks)]
        self._error = np.full(ranks, np.nan)

    def add(self, scores: FloatArray, errors: FloatArray) -> None:
        """Add the scores of one step and their errors from within it."""
        for lag, sums, count in zip((1, 2), (self._near, self._far), self._counts, strict=True):
            if len(self._before) < lag:
                continue
            squares = (scores - self._before[-lag]) ** 2 / 2.0
            usual = np.fmax(sums, _finite_median(sums[count > 0])) if (count > 2).any() else sums
            squares = _without_jumps(squares, usual)
            known = np.isfinite(squares)
            count += known & (count < self._memory)
            sums += np.where(known, np.nan_to_num(squares - sums) / np.maximum(count, 1.0), 0.0)
        self._before = [*self._before[-1:], scores]
        self._error = np.where(np.isfinite(errors), errors, self._error)

    def noise(self) -> Noise:
        """Return the noise so far."""
        near, count = np.where(self._counts[0] > 0, self._near, np.nan), self._counts[0]
        steps = float(count.max(initial=0.0)) + 1.0
        if steps < 3:
            return noise_of(np.full((1, len(near)), np.nan), self._error[None])
        correlation = 0.0
        if steps >= 6:
            far = np.where(self._counts[1] > 0, self._far, np.nan)
            correlation = correlation_from(_finite_mean(near), _finite_mean(far))
        return _combined(near, steps, correlation)
