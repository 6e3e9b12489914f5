"""Change points of a series by E-divisive.

Matteson and James 2014, "A Nonparametric Approach for Multiple Change Point Analysis of Multivariate
Data", JASA 109, with alpha = 1: the split with the largest energy distance between its sides, tested by
permutations within its segment; both sides are then split again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..tables.arrays import FloatArray

LEAST_SIDE = 2
"""Of one value the energy distance is not defined."""
PERMUTATIONS = 499
LEVEL = 0.05
"""As in the paper."""
MOST_VALUES = 2_000
"""Distances of all pairs are held: 2,000 values take 32 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """Where a series changes."""

    index: int
    """The first value after the change."""
    chance: float
    """Share of permutations with as large a distance: how probable it is without a change."""


def change_points(
    values: FloatArray, *, level: float = LEVEL, permutations: int = PERMUTATIONS, seed: int = 0
) -> tuple[ChangePoint, ...]:
    """Return the change points in their order.

    Args:
        values: The series, at most ``MOST_VALUES``.
        level: A change is kept where chance would make it in at most this share of series.
        permutations: How many are drawn for each test.
        seed: Of the permutations: equal series give equal results.
    """
    random = np.random.default_rng(seed)
    found = _split(np.asarray(values, np.float64), 0, level, permutations, random)
    return tuple(sorted(found, key=lambda point: point.index))


def _split(
    values: FloatArray, offset: int, level: float, permutations: int, random: np.random.Generator
) -> Iterator[ChangePoint]:
    if len(values) < 2 * LEAST_SIDE:
        return
    distance = np.abs(values[:, None] - values[None, :])
    statistic = _energy(distance)
    best = int(np.argmax(statistic))
    if not statistic[best] > 0:
        return
    above = 0
    for _ in range(permutations):
        order = random.permutation(len(values))
        above += bool(_energy(distance[np.ix_(order, order)]).max() >= statistic[best])
        if above > level * (permutations + 1):
            return
    chance = (above + 1) / (permutations + 1)
    if chance > level:
        return
    at = best + LEAST_SIDE
    yield ChangePoint(index=offset + at, chance=chance)
    yield from _split(values[:at], offset, level, permutations, random)
    yield from _split(values[at:], offset + at, level, permutations, random)


def _energy(distance: FloatArray) -> FloatArray:
    """Return the scaled energy distance of every split (eq. 5 and 6 of the paper), the least side first."""
    count = len(distance)
    first = np.arange(LEAST_SIDE, count - LEAST_SIDE + 1)
    second = count - first
    rows = np.concatenate([[0.0], distance.sum(axis=1).cumsum()])[first]
    within = np.concatenate([[0.0], np.diagonal(distance.cumsum(axis=0).cumsum(axis=1))])[first]
    rest = distance.sum() - 2 * rows + within
    between = 2 * (rows - within) / (first * second)
    apart = between - within / (first * (first - 1)) - rest / (second * (second - 1))
    return np.asarray(first * second / count * apart, np.float64)
