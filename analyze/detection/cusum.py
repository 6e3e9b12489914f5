"""Page's cumulative sums over all ranks at once.

For standardised scores ``x`` the sum ``g = max(0, g + x - k)`` grows while the mean
of ``x`` is above the reference ``k`` and stays near 0 while it is below. An alarm is
given at ``g >= h``; the change lies where the sum last was 0. A large change is found
sooner with a large ``k``: each rank has one sum for each size that is looked for. The mean number of
steps to a false alarm, from Siegmund's corrected diffusion (*Sequential Analysis*,
1985), is ``(exp(2 k b) - 2 k b - 1) / (2 k^2)`` with ``b = h + 1.166``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

import numpy as np
import numpy.typing as npt

from .cube import BoolArray, FloatArray, IntArray

OVERSHOOT = 1.166
"""Twice the expected overshoot of a normal walk over a border, in deviations."""
MIN_THRESHOLD = 2.0
ITERATIONS = 25
"""Of the fixed point, each of which gains about a digit."""
STEP_SHARE = 0.4
"""Most that one step adds, as a share of the threshold: an alarm takes at least three steps,
because a single one may be slow for reasons that no theory of noise covers."""


def steps_to_false_alarm(threshold: float, reference: float) -> float:
    """Return the mean number of steps to a false alarm of one rank."""
    exponent = 2.0 * reference * (threshold + OVERSHOOT)
    if exponent > 700.0:
        return inf
    return (exp(exponent) - exponent - 1.0) / (2.0 * reference**2)


def threshold_for(steps: float, reference: npt.ArrayLike) -> FloatArray:
    """Return the threshold whose mean number of steps to a false alarm is ``steps``.

    The inverse of ``steps_to_false_alarm`` by fixed-point iteration, for each reference.
    """
    k = np.maximum(np.asarray(reference, dtype=np.float64), 1e-3)
    exponent = np.ones_like(k)
    for _ in range(ITERATIONS):
        exponent = np.log(2.0 * k**2 * steps + exponent + 1.0)
    return np.maximum(exponent / (2.0 * k) - OVERSHOOT, MIN_THRESHOLD)


@dataclass(slots=True)
class PageSum:
    """The sums [size, rank] of all ranks, and what was gathered since each has grown."""

    level: FloatArray
    since: IntArray
    """First step of the present excursion; -1 while the sum is 0."""
    total: FloatArray
    """Sum of the standardised scores since then, as they were."""
    count: FloatArray
    """Steps since then."""

    @classmethod
    def empty(cls, ranks: int, sizes: int = 1) -> PageSum:
        """Return sums at 0."""
        shape = (sizes, ranks)
        since = np.full(shape, -1, dtype=np.int64)
        return cls(np.zeros(shape), since, np.zeros(shape), np.zeros(shape))

    def add(self, step: int, scores: FloatArray, reference: FloatArray, border: FloatArray) -> None:
        """Add standardised scores of one step; a rank without a score keeps its sums.

        Args:
            step: Number of the step.
            scores: [rank].
            reference: [size, rank].
            border: Thresholds [size, rank].
        """
        known = np.isfinite(scores)
        score = np.where(known, scores, 0.0)
        reach = STEP_SHARE * border
        grown = np.maximum(self.level + np.clip(score - reference, -reach, reach), 0.0)
        level = np.where(known, grown, self.level)
        growing = level > 0
        self.since = np.where(growing, np.where(self.since < 0, step, self.since), -1)
        self.total = np.where(growing, self.total + score, 0.0)
        self.count = np.where(growing, self.count + known, 0.0)
        self.level = level

    def reset(self, ranks: BoolArray) -> None:
        """Set the sums of some ranks to 0."""
        self.level = np.where(ranks, 0.0, self.level)
        self.since = np.where(ranks, -1, self.since)
        self.total = np.where(ranks, 0.0, self.total)
        self.count = np.where(ranks, 0.0, self.count)


@dataclass(slots=True)
class Excursion:
    """The excursion of each rank that came closest to its threshold."""

    strength: FloatArray
    """Its highest point over the threshold: an alarm from 1 on."""
    first: IntArray
    """Where the sum was last 0."""
    last: IntArray
    """Where it was highest; -1 without an excursion. For normal scores the two are the most
    likely ends of a stretch with a raised mean."""

    @classmethod
    def none(cls, ranks: int) -> Excursion:
        """Return that nothing was seen yet."""
        return cls(np.zeros(ranks), np.zeros(ranks, np.int64), np.full(ranks, -1, np.int64))

    def see(self, step: int, sums: PageSum, border: FloatArray) -> None:
        """Take in the sums after a step, given their thresholds [size, rank]."""
        strength = sums.level / border
        size = strength.argmax(axis=0)
        ranks = np.arange(strength.shape[1])
        higher = strength[size, ranks] > self.strength
        self.strength = np.where(higher, strength[size, ranks], self.strength)
        self.first = np.where(higher, sums.since[size, ranks], self.first)
        self.last = np.where(higher, step, self.last)


def largest_excursion(scores: FloatArray, reference: FloatArray, border: FloatArray) -> Excursion:
    """Return the strongest excursion of each rank over scores [step, rank]."""
    steps, ranks = scores.shape
    sums, seen = PageSum.empty(ranks, len(reference)), Excursion.none(ranks)
    for step in range(steps):
        sums.add(step, scores[step], reference, border)
        seen.see(step, sums, border)
    return seen
