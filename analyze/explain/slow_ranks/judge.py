"""The two tests on the scores of all ranks, for the recorded window and the running job alike.

A rank is suspected when a stretch of steps exceeds what its replicas take, or what it
took before itself, by more than noise explains (``stretches``). What the two tests may cost is
shared out by what they can see, which the noise tells and the scores do not: weights that do not
depend on the outcome keep the sum (Roeder and Wasserman, *Statistical Science* 2009).
"""

from __future__ import annotations

import msgspec
import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .cube import IntArray
from .settings import DetectionSettings
from .stretches import LONGEST, REACH, SHORTEST, Budget, Stretches, Strongest, borders, strongest
from .uncertainty import Doubt

SUSPICION = 0.85
"""From this share of its border on, a rank's present is kept out of its past."""
FEWEST_LOOKS = 5
"""Looks that the steps right after the baseline count as: all of them share its error."""
POWER_DEVIATE = 1.645
"""Normal deviate of a hit rate of 95 %."""
MOST = 0.9
"""Share of what both tests may cost for the one that sees more. The tenth that is left raises the
border of the other one by little, which still finds large slow-downs."""


class Budgets(msgspec.Struct, frozen=True):
    """Those of the two tests, which share what the settings allow."""

    past: Budget
    peers: Budget


def past_share(doubt: Doubt | None, steps: int, settings: DetectionSettings) -> float:
    """Return what the test against the own past has of the chance that a rank is blamed.

    All of it without replicas, nothing while there is no past. Else most of it for the test whose
    error is smaller over the longest stretch: both look at the same slow-down, and the one that
    sees it worse seldom sees it alone.

    Args:
        doubt: How wrong scores may be; None: not known yet.
        steps: Steps of the window, or of the job so far.
        settings: What counts as slow.
    """
    if steps < settings.baseline_steps + SHORTEST:
        return 0.0
    if doubt is None:
        return 0.5
    compared = np.isfinite(doubt.lasting)
    if not compared.any():
        return 1.0
    since = min(LONGEST, steps - settings.baseline_steps)
    by_past = doubt.error(since, max(settings.baseline_steps, steps - since))
    by_peers = doubt.error(min(LONGEST, steps))
    is_better = bool(np.median(by_past[compared]) < np.median(by_peers[compared]))
    return MOST if is_better else 1.0 - MOST


def window_budgets(
    ranks: int, steps: int, settings: DetectionSettings, doubt: Doubt | None = None
) -> Budgets:
    """Return the budgets of a recorded window, which is judged once.

    Args:
        ranks: Number of ranks.
        steps: Length of the window.
        settings: What it may cost.
        doubt: How wrong its scores may be.
    """
    baseline = settings.baseline_steps
    chance = settings.false_alarms_per_window / ranks
    tested = float(max(steps - 2 * baseline, FEWEST_LOOKS))
    share = past_share(doubt, steps, settings)
    return Budgets(
        past=Budget(
            share * chance / tested, float(baseline), min(LONGEST, max(steps - baseline, 1))
        ),
        peers=Budget(
            (1.0 - share) * chance / max(steps, FEWEST_LOOKS),
            float(max(steps, baseline)),
            min(LONGEST, steps),
        ),
    )


def running_budgets(
    ranks: int, steps: int, settings: DetectionSettings, doubt: Doubt | None = None
) -> Budgets:
    """Return the budgets of a running job, which is judged after each step.

    Args:
        ranks: Number of ranks.
        steps: Steps so far, which bound how long stretches can be.
        settings: What it may cost.
        doubt: How wrong scores may be; None: not known yet.
    """
    rate = 1.0 / (settings.steps_between_false_alarms * ranks)
    baseline = settings.baseline_steps
    share = past_share(doubt, steps, settings)
    return Budgets(
        past=Budget(share * rate, float(baseline), min(LONGEST, max(steps - baseline, 1))),
        peers=Budget((1.0 - share) * rate, float(baseline), min(LONGEST, steps)),
    )


class Look(msgspec.Struct, frozen=True):
    """What the tests say after a step."""

    past: Strongest
    peers: Strongest

    @property
    def strength(self) -> FloatArray:
        """Return the larger of the two strengths, by rank."""
        return np.asarray(np.maximum(self.past.strength, self.peers.strength))


class Judge:
    """Keeps the last scores of all ranks and tests them after each step."""

    def __init__(self, ranks: int, settings: DetectionSettings, budgets: Budgets) -> None:
        """Begin.

        Args:
            ranks: Number of ranks.
            settings: What counts as slow.
            budgets: How often a healthy rank may be blamed.
        """
        self.budgets = budgets
        self.settings = settings
        self.own = Stretches.empty(ranks)
        self.peers = Stretches.empty(ranks)
        self.look = Look(Strongest.none(ranks), Strongest.none(ranks))

    def see(self, own: FloatArray, peers: FloatArray, doubt: Doubt, suspects: BoolArray) -> Look:
        """Take in the scores of one step and test the stretches that end with it.

        Args:
            own: Scores against the own past [rank].
            peers: Scores against the replicas [rank]; NaN without.
            doubt: How wrong they may be.
            suspects: Ranks that are known as slow; their past stays as it is.
        """
        calm = (self.look.past.strength < SUSPICION) & ~suspects
        memory, reach = self.settings.memory_steps, REACH * doubt.step
        self.own.add(own, calm, memory, reach)
        self.peers.add(peers, ~suspects, memory, reach)
        self.look = Look(self.against_past(self.own, doubt), self.against_peers(self.peers, doubt))
        return self.look

    def recall(self, own: FloatArray, peers: FloatArray, blamed: BoolArray) -> None:
        """Take the scores [step, rank] of all steps so far anew, for now they are known better.

        Args:
            own: Scores against the own past.
            peers: Scores against the replicas.
            blamed: Ranks that were found slow before; what was forgotten of them stays so.
        """
        self.own.replace(own, blamed)
        self.peers.replace(peers, blamed)

    def relief(
        self, slowdown: FloatArray, steps: IntArray, doubt: Doubt, *, by_past: bool
    ) -> tuple[Strongest, FloatArray]:
        """Return how strongly the last steps say that slow ranks recovered, and their last score.

        Args:
            slowdown: How slow each rank was; NaN for those that are not asked about.
            steps: Steps since each was found slow, which alone can say so.
            doubt: How wrong scores may be.
            by_past: Whether they were slow against their own past, or the replicas.
        """
        kept = self.own if by_past else self.peers
        usual = kept.past if by_past else np.zeros(len(slowdown))
        means = kept.means(np.full(len(slowdown), np.inf))
        excess = means.recent - usual
        variance = doubt.variance / np.maximum(means.count, 1.0)
        # A recovery is looked for by one test, which has what the better one of the two has.
        budget = max(self.budgets.past, self.budgets.peers, key=lambda own: own.rate)
        border = borders(np.ones_like(variance), budget, doubt.noise.degrees)
        strength = (slowdown - excess) / np.sqrt(variance) / border
        since = np.arange(1, len(strength) + 1)[:, None] <= steps
        ended = strongest(np.where(since & (excess < slowdown / 2), strength, 0.0), means.count)
        return ended, kept.recent[-1] - usual

    def go_on(self, own: Stretches, peers: Stretches, look: Look) -> None:
        """Go on from a state in which others have brought the scores."""
        self.own, self.peers, self.look = own, peers, look

    def against_past(self, own: Stretches, doubt: Doubt) -> Strongest:
        """Return the stretches that stand out most against the past of each rank."""
        if (own.count + len(own.recent)).max() < self.settings.baseline_steps + SHORTEST:
            return Strongest.none(len(doubt.lasting))
        means = own.means(REACH * doubt.step)
        error = doubt.variance / np.maximum(means.before_count, 1.0) + doubt.wander**2
        known = means.before_count >= self.settings.baseline_steps
        strength = self._strength(
            means.recent - means.before, means.count, error, doubt, self.budgets.past
        )
        return strongest(np.where(known, strength, 0.0), means.count)

    def against_peers(self, peers: Stretches, doubt: Doubt) -> Strongest:
        """Return the stretches that stand out most against the replicas of each rank."""
        if not np.isfinite(doubt.lasting).any():
            return Strongest.none(len(doubt.lasting))
        means = peers.means(REACH * doubt.step)
        error = np.broadcast_to(doubt.lasting**2, means.recent.shape)
        strength = self._strength(means.recent, means.count, error, doubt, self.budgets.peers)
        return strongest(strength, means.count)

    def _strength(
        self,
        excess: FloatArray,
        count: FloatArray,
        lasting: FloatArray,
        doubt: Doubt,
        budget: Budget,
    ) -> FloatArray:
        """Return excess over border [steps, rank], given the variance of what lasts."""
        fresh = doubt.variance / np.maximum(count, 1.0)
        variance = fresh + lasting
        share = np.minimum(fresh / variance, 1.0)
        border = borders(share, budget, doubt.noise.degrees)
        return np.asarray(excess / np.sqrt(variance) / border)


def least_visible(
    doubt: Doubt, steps: int, budgets: Budgets, settings: DetectionSettings
) -> FloatArray:
    """Return, by rank, the slow-down that would be found 95 times in 100; NaN where none would.

    Against replicas for the whole window, or by the own past for one that begins after the
    baseline: ``(border + 1.645)`` standard errors, for the length that shows most.
    """
    ranks = len(doubt.lasting)
    least = np.full(ranks, np.nan)
    baseline = float(settings.baseline_steps)
    past = doubt.variance / baseline + doubt.wander**2
    for longest, lasting, budget in (
        (steps, doubt.lasting**2, budgets.peers),
        (steps - settings.baseline_steps, past, budgets.past),
    ):
        if longest < SHORTEST:
            continue
        count = np.arange(1.0, min(longest, LONGEST) + 1)[:, None]
        fresh = doubt.variance / count
        share = fresh / (fresh + lasting)
        border = borders(share, budget, doubt.noise.degrees)
        visible = (border + POWER_DEVIATE) * np.sqrt(fresh + lasting)
        least = np.fmin(least, visible[SHORTEST - 1 :].min(axis=0))
    return least
