"""How noisy scores are from step to step, and what that lets one see.

Noise is taken from differences between steps, which a constant slow-down does not
touch: half the mean squared difference of steps a lag apart, the variogram ``v(lag)``.
Successive steps are alike (temperature, neighbours on the network), so the
mean of n of them is less certain than n independent ones: its variance is
``sigma^2 * inflation / n``. At a lag that is ``far`` enough the variogram is the variance, so that
the covariances are ``v(far) - v(lag)`` and ``inflation = 1 + 2 sum(1 - v(lag) / v(far))``.

What the scatter of the items within a step tells of a rank's variance is off by a factor that
is much the same for all ranks. The factor of one rank is drawn towards that of all ranks as far
as these are alike (Smyth, *Statistical Applications in Genetics and Molecular Biology* 2004,
section 3).
"""

from __future__ import annotations

from math import expm1, log, sqrt
from statistics import NormalDist

import msgspec
import numpy as np

from ...tables.arrays import FloatArray
from ...tables.threads import map_in_threads
from .known_values import finite_median

LAGS = 5
"""Steps over which correlation is looked for."""
MIN_INFLATION, USUAL_INFLATION, USUAL_GROWTH = 1.2, 1.5, 1.1
"""A correlation of a tenth is more than a few tens of steps can rule out."""
USUAL_COUNT = 1000.0
"""Scores that the usual inflation and growth of the variogram count as much as."""
JUMP, DRAWN_IN = 9.0, 3.0
"""A squared difference of more than 9 times the usual one is a change and counts as 3."""
UNLIKE = 4.0
"""A rank whose factor is this much larger is another kind."""
USUAL_UNLIKENESS, USUAL_RANKS = 0.03, 8.0
"""Variance of the logarithms of the ranks' variances that is assumed, as if that many ranks
had shown it."""
USUAL_FACTOR, FACTOR_DEGREES = 2.5, 30.0
"""Variance of a step over what the scatter within it leads to expect, and the degrees of freedom
that this counts as: it holds until the steps themselves tell, unless they vary more."""
DIFFERENCE_EFFICIENCY = 2 / 3
"""Share of the degrees of freedom that is left when noise comes from differences of neighbours."""
NOISE_FLOOR = 5e-4
"""Least noise of a step, as a share of its work: integer stamps and clocks are not exact."""
_LARGE_CELLS = 1 << 17
"""Scores of so many steps and ranks take milliseconds."""
_NORMAL = NormalDist()


class Noise(msgspec.Struct, frozen=True):
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
        pooled = finite_median(sigma)
        return Noise(np.maximum(np.fmax(sigma, pooled), NOISE_FLOOR), 1.0, float(4 * ranks))
    known = np.isfinite(errors)
    within = np.where(known, errors, 0.0) ** 2
    within = within.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    lags = range(1, min(LAGS, steps - 1) + 1)

    def spread(lag: int) -> FloatArray:
        return _squared_spread(scores, lag)

    large = scores.size >= _LARGE_CELLS
    variogram = np.stack(list(map_in_threads(spread, lags, side_by_side=large)))
    return _combined(variogram, within, float(steps))


def _combined(variogram: FloatArray, within: FloatArray, steps: float) -> Noise:
    """Return the noise from the variogram [lag, rank] and the variances within steps [rank]."""
    # Ranks whose steps are all the same count, too: else a job without noise has the correlation of its one fault.
    growth, inflation = _correlation(np.maximum(variogram, NOISE_FLOOR**2), steps)
    usual = finite_median(within[within > 0])
    scale = np.where(within > 0, within, usual) if usual > 0 else np.ones_like(within)
    own = variogram[0] * growth / scale
    pooled = finite_median(own)
    degrees = DIFFERENCE_EFFICIENCY * (steps - 1)
    together = max(int(np.isfinite(own).sum()), 1) * degrees
    if usual > 0:
        mixed = (together * pooled + FACTOR_DEGREES * USUAL_FACTOR) / (together + FACTOR_DEGREES)
        together += FACTOR_DEGREES * (USUAL_FACTOR / pooled if pooled > USUAL_FACTOR else 1.0)
        pooled = max(pooled, mixed)
    prior = _prior_degrees(own, degrees)
    factor = (prior * pooled + degrees * own) / (prior + degrees)
    factor = np.where(own > UNLIKE * pooled, own, factor)
    variance = scale * np.where(np.isfinite(factor), factor, pooled)
    sigma = np.fmax(np.sqrt(variance), NOISE_FLOOR)
    return Noise(sigma, inflation, max(2.0, min(prior + degrees, together)))


def _prior_degrees(own: FloatArray, degrees: float) -> float:
    """Return how many degrees of freedom the variance of all ranks adds to that of one."""
    known = np.log(own[np.isfinite(own) & (own > 0)])
    seen = 0.0
    if len(known) > 2:
        seen = (1.4826 * float(np.median(np.abs(known - np.median(known))))) ** 2
    ranks = float(len(known))
    # Variance of the logarithm of a variance with so many degrees (trigamma), and what the ranks'
    # number adds by chance.
    chance = 2.0 / degrees + 2.0 / degrees**2 + 4.0 / (3.0 * degrees**3)
    unlike = max(seen - chance * (1.0 + sqrt(2.0 / max(ranks, 1.0))), 0.0)
    unlike = (ranks * unlike + USUAL_RANKS * USUAL_UNLIKENESS) / (ranks + USUAL_RANKS)
    return 2.0 / unlike


def _correlation(variogram: FloatArray, steps: float) -> tuple[float, float]:
    """Return ``v(far) / v(1)`` and the inflation: the usual ones, or what all ranks show."""
    if len(variogram) < LAGS:
        return USUAL_GROWTH, USUAL_INFLATION
    near, far = variogram[0], variogram[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        growth = finite_median(far / near)
        inflation = finite_median(1.0 + 2.0 * (1.0 - variogram[:-1] / far).sum(axis=0))
    if not np.isfinite(growth + inflation):
        return USUAL_GROWTH, USUAL_INFLATION
    count = steps * float(np.isfinite(far).sum())
    weight = count / (count + USUAL_COUNT)
    growth = weight * growth + (1.0 - weight) * USUAL_GROWTH
    inflation = weight * inflation + (1.0 - weight) * USUAL_INFLATION
    return max(1.0, growth), max(MIN_INFLATION, inflation)


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
    squares = scores[lag:] - scores[:-lag]
    np.square(squares, out=squares)
    squares /= 2.0
    known = np.isfinite(squares)
    of_all = finite_median(squares)
    # Laid out by rank, so that the steps of each lie beside each other.
    by_rank = squares.T.copy()
    by_rank[~known.T] = of_all
    own = np.median(by_rank, axis=1, overwrite_input=True)
    usual = np.fmax(own, of_all) / 0.455
    squares = _without_jumps(squares, usual)
    squares[~known] = 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known.any(axis=0), squares.sum(axis=0) / known.sum(axis=0), np.nan)


def _without_jumps(squares: FloatArray, usual: FloatArray) -> FloatArray:
    """Return squares with those of changes, which are no noise, drawn in to a usual large one.

    A change is in one difference of lag 1 and in two of lag 2, so that it would look
    like a correlation. Also where most steps are exactly alike.
    """
    usual = np.maximum(usual, NOISE_FLOOR**2)
    return np.where(squares > JUMP * usual, DRAWN_IN * usual, squares)


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
        self._variogram = np.zeros((LAGS, ranks))
        self._counts = np.zeros((LAGS, ranks))
        self._error = np.full(ranks, np.nan)
        self._within = np.zeros(ranks)
        self._steps = 0

    def add(self, scores: FloatArray, errors: FloatArray) -> None:
        """Add the scores of one step and their errors from within it."""
        for lag, before in enumerate(reversed(self._before)):
            mean, count = self._variogram[lag], self._counts[lag]
            squares = (scores - before) ** 2 / 2.0
            if (count > 2).any():
                squares = _without_jumps(squares, np.fmax(mean, finite_median(mean[count > 0])))
            known = np.isfinite(squares)
            count += known & (count < self._memory)
            mean += np.where(known, np.nan_to_num(squares - mean) / np.maximum(count, 1.0), 0.0)
        self._before = [*self._before, scores][-LAGS:]
        self._error = np.where(np.isfinite(errors), errors, self._error)
        self._steps = min(self._steps + 1, self._memory)
        self._within += (np.nan_to_num(self._error) ** 2 - self._within) / self._steps

    def noise(self) -> Noise:
        """Return the noise so far."""
        steps = float(self._counts[0].max(initial=0.0)) + 1.0
        if steps < 3:
            return noise_of(np.full((1, len(self._error)), np.nan), self._error[None])
        lags = min(LAGS, int(steps) - 1)
        seen = np.where(self._counts[:lags] > 0, self._variogram[:lags], np.nan)
        return _combined(seen, self._within, steps)
