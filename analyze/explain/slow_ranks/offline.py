"""The tests on the scores of a recorded window.

They follow it step by step, as they do in a running job, and the strongest stretch of each rank is
kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...tables.arrays import FloatArray
from .judge import Budgets, Judge, window_budgets
from .settings import DetectionSettings
from .stretches import Peak
from .window import Scored


@dataclass(frozen=True, slots=True)
class Tested:
    """The strongest stretches against the own past and against the replicas."""

    past: Peak
    peers: Peak

    @property
    def strength(self) -> FloatArray:
        """Return the larger of the two; an alarm from 1 on."""
        return np.asarray(np.maximum(self.past.strength, self.peers.strength))


def budgets_of(scored: Scored, settings: DetectionSettings) -> Budgets:
    """Return how often the tests on a window may blame a healthy rank."""
    steps, ranks = scored.own.shape
    return window_budgets(ranks, steps, settings, scored.doubt)


def run_tests(scored: Scored, settings: DetectionSettings) -> Tested:
    """Return the strongest stretches of all ranks of a window."""
    steps, ranks = scored.own.shape
    judge = Judge(ranks, settings, budgets_of(scored, settings))
    tested = Tested(Peak.none(ranks), Peak.none(ranks))
    nobody = np.zeros(ranks, dtype=bool)
    for position in range(steps):
        look = judge.see(scored.own[position], scored.peers[position], scored.doubt, nobody)
        tested.past.see(position, look.past)
        tested.peers.see(position, look.peers)
    return tested
