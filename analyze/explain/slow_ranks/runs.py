"""The runs of steps in which a rank is slow, of one that is slow now and then.

Each step is slow or not. Noise of standard deviation ``s`` a step and a slow-down ``d`` make the
likelihood of a choice ``exp(sum(excess - d / 2) d / s^2)`` over its slow steps. A random walk of
such terms without a slow-down, or of their opposites inside one, rises by ``P`` from any given
start with a chance of ``exp(-P)`` at most (Wald, *Annals of Mathematical Statistics* 1945); a run
must exceed the ``P`` that is rarely met from all starts together. The best choice is found by
dynamic programming (Viterbi 1967).
"""

from __future__ import annotations

from math import log

import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .stretches import REACH

RARELY = 0.01
"""Chance that noise adds a run to those of a rank, or splits one of them."""
SURE = 2.0 * REACH
"""Deviations of a slow-down from which on more of it says no more: a step is slow from half of
it on, the border beyond which no single score counts in full."""
_ROUNDS = 2
"""The slow-down is first that of the whole stretch, which may hold healthy steps."""


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
