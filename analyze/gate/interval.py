"""The interval of a change between two sets of runs: the run is the unit, logarithms are compared.

Two estimators share the error. Welch's interval is the shorter one where all runs are alike. The
interval of trimmed means with Winsorised variance (Yuen 1974, Biometrika 61) leaves the largest and
the least run of each side out, so one disturbed run neither hides a change nor makes one. What both
allow is the interval. Each is taken at a share of the error: under normal noise the pair then errs
about as often as asked, because the two mostly err together (simulated for 4 to 20 runs a side).

Fewer than four candidate runs say little of their own spread. They are taken to differ as much from run to
run as the baseline does: its spread and theirs are pooled. Of one run, that is the prediction interval.

Student's t is computed by the incomplete beta function as a continued fraction (Abramowitz and Stegun 26.7.1, 26.5.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, lgamma, log, sqrt

import numpy as np

from ..tables.arrays import FloatArray

_TERMS = 300
_CLOSE = 1e-14
_TINY = 1e-300
"""Of the continued fraction: more terms than it takes to 1e-14, and what stands in for zero."""


def cdf(value: float, freedom: float) -> float:
    """Return the chance that Student's t is at most ``value``; ``freedom`` may be fractional."""
    if value in (-inf, inf):
        return float(value > 0)
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + value * value))
    return 1 - tail if value > 0 else tail


@lru_cache(maxsize=4096)
def quantile(level: float, freedom: float) -> float:
    """Return the value that Student's t stays below with chance ``level``, by bisection."""
    if level == 0.5:
        return 0.0
    if level < 0.5:
        return -quantile(1 - level, freedom)
    low, high = 0.0, 1.0
    while cdf(high, freedom) < level and high < 1e15:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle, freedom) < level else (low, middle)
        if high - low <= 1e-12 * high:
            break
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x)) / a
    return front * _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by the method of Lentz."""
    value, c, d = 1.0, inf, 1.0
    for step in range(1, _TERMS):
        half = step // 2
        if step % 2:
            part = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            part = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / _off_zero(1 + part * d)
        c = _off_zero(1 + part / c)
        value *= c * d
        if abs(c * d - 1) < _CLOSE:
            break
    return value


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


SHARE = 0.65
SHARE_OF_FEW = 0.55
"""The same for fewer than ``TRIMMED_FROM`` candidate runs, of which none is left out."""
TRIMMED_FROM = 4
"""Runs of a side from which its extremes can be left out."""
LEAST_SPREAD = 1e-6
"""Clocks do not time a step any better; runs that agree to the last digit leave no interval of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A change with the error of its estimate; in logarithms."""

    change: float
    error: float
    """Standard error; infinite where nothing tells by how much runs differ."""
    freedom: float

    def low(self, level: float) -> float:
        """Return the bound that the change stays above but for an error of ``level``."""
        return self.change - self._reach(level)

    def high(self, level: float) -> float:
        """Return the bound that the change stays below but for an error of ``level``."""
        return self.change + self._reach(level)

    def chance_below(self, bound: float) -> float:
        """Return how probable such an estimate is at most where the change is ``bound`` or less."""
        return (
            1.0 if self.error == inf else 1 - cdf((self.change - bound) / self.error, self.freedom)
        )

    def _reach(self, level: float) -> float:
        return inf if self.error == inf else quantile(1 - level, self.freedom) * self.error


@dataclass(frozen=True, slots=True)
class Change:
    """The change from baseline to candidate by all estimators; in logarithms."""

    parts: tuple[Estimate, ...]
    share: float = 1.0
    """Of the error, for each part."""

    @property
    def change(self) -> float:
        """Return the estimate of the part with the least error."""
        return min(self.parts, key=lambda part: part.high(0.05) - part.change).change

    @property
    def is_known(self) -> bool:
        """Return whether anything tells by how much runs differ."""
        return all(part.error < inf for part in self.parts)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the bounds; each side errs with a chance of ``level``."""
        each = level * self.share
        low = max(part.low(each) for part in self.parts)
        high = min(part.high(each) for part in self.parts)
        if low <= high:
            return low, high
        # No change agrees with both: the one that leaves no run out decides.
        return self.parts[0].low(each), self.parts[0].high(each)

    def chance_below(self, bound: float) -> float:
        """Return the least error at which the change is found to be above ``bound``."""
        return min(1.0, min(part.chance_below(bound) for part in self.parts) / self.share)


def change_between(base: FloatArray, candidate: FloatArray) -> Change:
    """Return the change between two sets of runs.

    Args:
        base: One logarithm a run; at least one.
        candidate: The same; of one run, this is a prediction.
    """
    if len(base) < 2:
        change = float(candidate.mean() - base.mean())
        return Change((Estimate(change=change, error=inf, freedom=1),))
    if len(candidate) < TRIMMED_FROM:
        whole = _pooled(_plain(base), candidate)
        if len(base) < TRIMMED_FROM:
            return Change((whole,))
        return Change((whole, _pooled(_trimmed(base), candidate)), SHARE_OF_FEW)
    whole = _welch(_plain(base), _plain(candidate))
    if len(base) < TRIMMED_FROM:
        return Change((whole,))
    return Change((whole, _welch(_trimmed(base), _trimmed(candidate))), SHARE)


@dataclass(frozen=True, slots=True)
class _Middle:
    """The middle of the runs of one side, and how much they differ."""

    value: float
    square: float
    """Squared standard error of ``value``."""
    freedom: float
    of_one: float
    """Variance of one run."""


def _plain(values: FloatArray) -> _Middle:
    of_one = max(float(values.var(ddof=1)), LEAST_SPREAD**2)
    return _Middle(float(values.mean()), of_one / len(values), len(values) - 1.0, of_one)


def _trimmed(values: FloatArray) -> _Middle:
    """Return the trimmed mean with its Winsorised variance (Yuen 1974)."""
    ordered = np.sort(values)
    cut = max(1, len(values) // 5)
    kept = ordered[cut : len(values) - cut]
    held = np.clip(ordered, kept[0], kept[-1])
    total = max(float(held.var(ddof=1)), LEAST_SPREAD**2) * (len(values) - 1)
    freedom = len(kept) - 1.0
    return _Middle(float(kept.mean()), total / (len(kept) * freedom), freedom, total / freedom)


def _pooled(base: _Middle, candidate: FloatArray) -> Estimate:
    """Return the change to runs whose spread is taken to be that of the baseline."""
    count = len(candidate)
    own = float(((candidate - candidate.mean()) ** 2).sum())
    freedom = base.freedom + count - 1
    of_one = (base.freedom * base.of_one + own) / freedom
    error = sqrt(base.square * of_one / base.of_one + of_one / count)
    change = float(candidate.mean()) - base.value
    return Estimate(change=change, error=error, freedom=freedom)


def _welch(base: _Middle, candidate: _Middle) -> Estimate:
    """Return the change with the freedom of Welch and Satterthwaite."""
    total = base.square + candidate.square
    freedom = total**2 / (base.square**2 / base.freedom + candidate.square**2 / candidate.freedom)
    return Estimate(
        change=candidate.value - base.value, error=sqrt(total), freedom=round(freedom, 2)
    )
