"""Which steps of a window a rank was slow in, and how slow it was there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .conclude import Measured
from .offline import Tested
from .runs import slow_steps
from .stretches import SHORTEST, raised_part
from .uncertainty import Doubt
from .window import Scored

_ROUNDS = 2
"""Outside of the stretch that a test points at there may be other slow steps, which are no past."""
CLEARLY = 1.5
"""By that factor scattered steps must exceed the others more than one stretch does."""


@dataclass(frozen=True, slots=True)
class SlowPart:
    """The steps in which a rank was slow."""

    series: FloatArray
    """Scores of the whole window against what the rank was found slow against."""
    slow: BoolArray
    by_past: bool

    @property
    def mean(self) -> float:
        """Return the mean score of the slow steps."""
        return float(np.nanmean(self.series[self.slow]))

    @property
    def count(self) -> float:
        """Return the number of slow steps with a score."""
        return float(np.isfinite(self.series[self.slow]).sum())


def slow_part(scored: Scored, tested: Tested, position: int) -> SlowPart:
    """Return the most likely slow steps of a rank, by the test that points most at it."""
    by_past = bool(tested.past.strength[position] > tested.peers.strength[position])
    peak = tested.past if by_past else tested.peers
    found = np.zeros(len(scored.own), dtype=bool)
    found[peak.first[position] : peak.last[position] + 1] = True
    if not by_past:
        series = scored.peers[:, position]
        return SlowPart(series, _steps_of(series, found, scored.doubt, position), by_past)
    slow = found
    for _ in range(_ROUNDS):
        series = _against_rest(scored.own[:, position], slow)
        slow = _steps_of(series, found, scored.doubt, position)
    return SlowPart(_against_rest(scored.own[:, position], slow), slow, by_past)


def _steps_of(series: FloatArray, found: BoolArray, doubt: Doubt, position: int) -> BoolArray:
    """Return the most likely slow steps, given a stretch that holds some of them."""
    size = float(np.nanmean(series[found]))
    one = np.zeros_like(found)
    first, last = raised_part(series, size)
    one[first : last + 1] = True
    deviation, inflation = float(doubt.step[position]), doubt.noise.inflation
    slow = slow_steps(series, size, deviation, inflation)
    if _holds(slow, found, series):
        return slow
    # Of a rank that is slow on and off a stretch is healthy for the most part: then its mean says
    # little of its slow steps, and those above it more.
    above = series[series >= min(size, float(np.nanmax(series[found])))]
    slow = slow_steps(series, float(above.mean()), deviation, inflation)
    if _weight(series, slow) < CLEARLY * _weight(series, one):
        slow = one
    return slow if _holds(slow, found, series) else found


def _holds(slow: BoolArray, found: BoolArray, series: FloatArray) -> bool:
    """Tell whether enough steps of a stretch are among the slow ones."""
    return bool((slow & found & np.isfinite(series)).sum() >= SHORTEST)


def _weight(series: FloatArray, slow: BoolArray) -> float:
    """Return how much some steps exceed the others, as steps add up."""
    excess = series[slow & np.isfinite(series)]
    return float(excess.mean() * np.sqrt(len(excess))) if len(excess) else 0.0


def measured_on(part: SlowPart, doubt: Doubt, position: int) -> Measured:
    """Return how slow a rank was, and how certain that is."""
    outside = float(len(part.series)) - part.count
    error = doubt.error(part.count, outside if part.by_past else None)[position]
    return Measured(slowdown=part.mean, error=float(error), degrees=doubt.noise.degrees)


def _against_rest(own: FloatArray, slow: BoolArray) -> FloatArray:
    """Return own scores against the mean of those outside of the slow steps.

    Own scores are relative to the mean of the window, which holds the slow steps.
    """
    rest = own[~slow & np.isfinite(own)]
    usual = 1.0 + float(rest.mean()) if len(rest) else 1.0
    return (1.0 + own) / usual - 1.0
