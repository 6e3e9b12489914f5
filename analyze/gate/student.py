"""Student's t: its distribution and quantiles at any level.

By the incomplete beta function as a continued fraction (Abramowitz and Stegun 26.7.1, 26.5.8).
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, lgamma, log

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
