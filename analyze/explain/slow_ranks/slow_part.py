"""Which steps of a window a rank was slow in, and how slow it was there.

Of a rank that is slow now and then, runs of steps are chosen. Each step is slow or not. Noise of standard deviation ``s`` a step and a slow-down ``d`` make the
likelihood of a choice ``exp(sum(excess - d / 2) d / s^2)`` over its slow steps. A random walk of
such terms without a slow-down, or of their opposites inside one, rises by ``P`` from any given
start with a chance of ``exp(-P)`` at most (Wald, *Annals of Mathematical Statistics* 1945); a run
must exceed the ``P`` that is rarely met from all starts together. The best choice is found by
dynamic programming (Viterbi 1967).
"""

from __future__ import annotations

from math import log

import msgspec
import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .conclude import Measured
from .offline import Tested
from .stretches import REACH, SHORTEST, raised_part
from .uncertainty import Doubt
from .window import Scored

RARELY = 0.01
"""Chance that noise adds a run to those of a rank, or splits one of them."""
SURE = 2.0 * REACH
"""Deviations of a slow-down from which on more of it says no more: a step is slow from half of
it on, the border beyond which no single score counts in full."""


def slow_steps(excess: FloatArray, size: float, deviation: float, inflation: float) -> BoolArray:
    """Return the most likely slow steps of one rank; none where no run is worth its price.

    Args:
        excess: Scores against what they are when the rank is healthy; NaN where absent.
        size: Rough mean of the slow steps.
        deviation: Standard deviation of one step.
        inflation: Steps that count as one, from their correlation.
    """
    slow = np.zeros(len(excess), dtype=bool)
    for _ in range(_ROUNDS):
        if not size > 0:
            return np.zeros(len(excess), dtype=bool)
        counted = min(size, SURE * deviation)
        gain = np.nan_to_num(np.clip(excess, -counted, 2 * counted) - counted / 2, nan=0.0)
        price = log(len(excess) / RARELY) * inflation * deviation**2 / counted
        slow = _best_choice(gain, price)
        known = slow & np.isfinite(excess)
        size = float(excess[known].mean()) if known.any() else 0.0
    return slow


def _best_choice(gain: FloatArray, price: float) -> BoolArray:
    """Return the steps with the largest sum of gains less the price of each run."""
    calm, slow = 0.0, -price
    began = np.zeros(len(gain), dtype=bool)
    ended = np.zeros(len(gain), dtype=bool)
    for at, own in enumerate(gain.tolist()):
        # Before this step: whether the best way to be slow comes from being calm, and back.
        began[at], ended[at] = calm - price > slow, slow > calm
        calm, slow = max(calm, slow), max(slow, calm - price) + own
    chosen = np.zeros(len(gain), dtype=bool)
    is_slow = slow > calm
    for at in range(len(gain) - 1, -1, -1):
        chosen[at] = is_slow
        is_slow = bool(not began[at] if is_slow else ended[at])
    return chosen


def runs_of(slow: BoolArray) -> list[tuple[int, int]]:
    """Return the first and last position of each run."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], slow, [False]])))
    return [
        (int(first), int(last) - 1) for first, last in zip(edges[::2], edges[1::2], strict=True)
    ]


_ROUNDS = 2
"""Outside of the stretch that a test points at there may be other slow steps, which are no past."""
CLEARLY = 1.5
"""By that factor scattered steps must exceed the others more than one stretch does."""


class SlowPart(msgspec.Struct, frozen=True):
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
