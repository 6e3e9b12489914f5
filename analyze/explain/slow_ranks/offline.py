"""The tests on the scores of a recorded window.

They follow it step by step, as they do in a running job, and the strongest stretch of each rank is
kept. Ranks that no test can blame (``screen``) are not followed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...tables.arrays import FloatArray
from .ahead import follow
from .judge import Budgets, Judge, window_budgets
from .screen import doubt_of_some, may_stand_out
from .settings import DetectionSettings
from .stretches import Peak
from .window import Scored


@dataclass(frozen=True, slots=True)
class Tested:
    """The strongest stretches against the own past and against the replicas."""

    past: Peak
    peers: Peak
    ranks: int
    """Ranks among which one may be blamed by chance."""

    @property
    def strength(self) -> FloatArray:
        """Return the larger of the two; an alarm from 1 on."""
        return np.asarray(np.maximum(self.past.strength, self.peers.strength))


def budgets_of(scored: Scored, settings: DetectionSettings) -> Budgets:
    """Return how often the tests on a window may blame a healthy rank."""
    steps, ranks = scored.own.shape
    return window_budgets(settings.judged(ranks), steps, settings, scored.doubt)


def run_tests(scored: Scored, settings: DetectionSettings) -> Tested:
    """Return the strongest stretches of the ranks of a window; strength 0 where it is below 1 for certain."""
    budgets = budgets_of(scored, settings)
    followed = may_stand_out(scored, settings, budgets)
    own, peers = scored.own[:, followed], scored.peers[:, followed]
    judge = Judge(own.shape[1], settings, budgets)
    past, against = Peak.none(own.shape[1]), Peak.none(own.shape[1])
    looks = follow(judge, own, peers, doubt_of_some(scored.doubt, followed)) if own.size else []
    for position, look in enumerate(looks):
        past.see(position, look.past)
        against.see(position, look.peers)
    places = np.flatnonzero(followed)
    return Tested(
        past=past.among(places, len(followed)),
        peers=against.among(places, len(followed)),
        ranks=settings.judged(len(followed)),
    )
