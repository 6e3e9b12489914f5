"""Bounds on the chance of sums that are drawn from known values (Chernoff 1952), in logarithms."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from math import lgamma

import numpy as np

from ...tables.arrays import BoolArray, FloatArray

TILTS = np.geomspace(2e-3, 2e3, 49)
"""Values of ``t`` that are tried, times the deviation of a piece."""
MOST_RAISED = 600.0
"""Exponent that a floating-point number still holds."""


def log_bound_of_steps(own: FloatArray, inside: BoolArray) -> float:
    """Return the logarithm of the bound on the chance of a sum over some of the steps of a rank."""
    count, size = int(inside.sum()), float(own.std())
    excess = float(own[inside].sum()) - count * float(own.mean())
    if excess <= 0 or size == 0:
        return 0.0
    level = float(np.sort(own)[-count:].mean())
    tilts = TILTS / size
    tilts = tilts[tilts * (own.max() - level) < MOST_RAISED / count]
    power = np.exp(tilts[:, None] * (own - level))
    logs = np.log(symmetric(power, count)) - tilts * (own[inside] - level).sum()
    return float((logs - log_choose(len(own), count)).min(initial=0.0))


def log_bound(drawn: FloatArray, own: float, together: int) -> float:
    """Return the logarithm of the bound on the chance of a sum, of so many values from each row.

    The values of a row are drawn without replacement: the mean of ``exp(t sum)`` over all choices is an
    elementary symmetric polynomial of ``exp(t d)``. Its logarithm is convex in ``t``, as that of every sum of exponentials, so that
    the least bound lies where it stops to fall.
    """
    known = np.isfinite(drawn)
    size = float(np.sqrt(np.mean(drawn[known] ** 2))) if known.any() else 0.0
    if own <= 0 or size == 0:
        return 0.0
    # What is not known adds nothing to a sum of powers.
    filled = np.where(known, drawn, -np.inf)
    choices = sum(
        np.vectorize(log_choose, otypes=[float])(count, together) * rows
        for count, rows in zip(*np.unique(known.sum(axis=1), return_counts=True), strict=True)
    )
    tilts = TILTS / size

    @cache
    def bound(at: int) -> float:
        raised = tilts[at] * filled
        top = raised.max(axis=1)
        raised -= top[:, None]
        chosen = symmetric(np.exp(raised, out=raised), together)
        if (chosen <= 0).any():
            return np.inf
        logs = together * float(top.sum()) + float(np.log(chosen).sum()) - choices
        return float(logs - tilts[at] * own)

    # Beyond the number range nothing falls any more.
    places = range(len(tilts) - 1)
    still = bisect_left(places, 1, key=lambda at: int(bound(at + 1) >= bound(at)))
    return min(bound(still), 0.0)


def symmetric(value: FloatArray, degree: int) -> FloatArray:
    """Return the elementary symmetric polynomial of a degree, of the values of each row."""
    if degree == 1:
        return np.asarray(value.sum(axis=1))
    sums = np.zeros((degree + 1, len(value)))
    sums[0] = 1.0
    for column in value.T:
        for order in range(degree, 0, -1):
            sums[order] += column * sums[order - 1]
    return np.asarray(sums[degree])


def log_choose(all_of: int, chosen: int) -> float:
    """Return the logarithm of the number of ways to choose some of several things."""
    return lgamma(all_of + 1) - lgamma(chosen + 1) - lgamma(all_of - chosen + 1)


def log_evenly_spaced(steps: int) -> float:
    """Return the logarithm of the number of sets of two or more evenly spaced steps of so many.

    Of each spacing ``s`` below ``n``, each first step ``a`` and each last one: sum over ``a`` of (n - 1 - a) // s.
    """
    left = np.arange(1, steps)[:, None]
    return float(np.log(max(1, int((left // np.arange(1, steps)).sum()))))
