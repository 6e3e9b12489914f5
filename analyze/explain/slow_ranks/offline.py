"""The tests on the scores of a recorded window.

They follow it step by step, as they do in a running job, and the strongest stretch of each rank is
kept. Ranks that no test can blame are not followed.

Several steps are judged at a time: a call for each step costs more than its arithmetic where few ranks are followed. So the windows that end
with each of some steps are laid beside each other, as if each were a rank. All that a step takes
from the one before is whether a rank is suspected, which holds its past still. That is expected to stay as
it is: steps after the first one that differs are judged anew. The result is the same to the last bit.

Of thousands of healthy ranks next to none comes near a border. The tests follow every rank step by step;
this bounds what they can find from running sums, for all steps at once. So only ranks whose bound
reaches a border have to be followed, and the result is the same to the last bit.

A score is drawn in to within a reach of the rank's recent median. With ``low`` and ``high`` as bounds
on all medians of a rank, a score is never drawn in to above ``max(score, high - reach)``, nor to below
``min(score, low + reach)``: sums of these bound every recent mean from above, and every past from below.
The past of a rank stands still while it is suspected. A rank whose bound stays below that share of its
border was never suspected, so that its past is known.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.threads import map_in_threads
from .judge import SUSPICION, Budgets, Judge, Look, window_budgets
from .settings import DetectionSettings
from .stretches import (
    LONGEST,
    REACH,
    SHORTEST,
    Budget,
    Peak,
    Stretches,
    Strongest,
    borders,
    least_borders,
    middle_of,
)
from .uncertainty import Doubt
from .window import Scored

PART = 10
"""Steps of a part. A window of the longest stretch holds three parts that begin at a multiple of it."""
_ABOVE = 6
"""Position in a sorted part: with seven entries of each of three parts at or below a value, so is the median."""
_BELOW = 3
_COLUMNS = 128
"""Ranks that are bounded at a time, so that their sums stay in the cache."""
_LARGE_CELLS = 1 << 15
"""Scores of so many steps and ranks take milliseconds."""
_GROWTH = 1.25
"""Steps of one length of the past are bounded together up to that ratio."""
_ROUNDING = 1e-6
"""Relative room for rounding: sums are formed in another order than in the tests."""


def may_stand_out(scored: Scored, settings: DetectionSettings, budgets: Budgets) -> BoolArray:
    """Return which ranks a test may blame; none of the others has a strength of 1 or more.

    Args:
        scored: The scores of a window.
        settings: What counts as slow.
        budgets: How often the tests may blame a healthy rank.
    """

    def of_some(part: slice) -> BoolArray:
        doubt = doubt_of_some(scored.doubt, part)
        with np.errstate(invalid="ignore", divide="ignore"):
            by_peers = _by_peers(scored.peers[:, part].copy(), doubt, budgets.peers)
            by_past = _by_past(scored.own[:, part].copy(), doubt, budgets.past, settings)
        return by_peers | by_past

    steps, ranks = scored.own.shape
    parts = [slice(first, first + _COLUMNS) for first in range(0, ranks, _COLUMNS)]
    return np.concatenate(
        [
            np.zeros(0, dtype=bool),
            *map_in_threads(of_some, parts, side_by_side=steps * _COLUMNS >= _LARGE_CELLS),
        ]
    )


def doubt_of_some(doubt: Doubt, ranks: slice | BoolArray) -> Doubt:
    """Return how wrong the scores of some ranks may be."""
    return replace(
        doubt,
        noise=replace(doubt.noise, sigma=doubt.noise.sigma[ranks]),
        lasting=doubt.lasting[ranks],
        wander=doubt.wander[ranks],
    )


class _Bounds(NamedTuple):
    """Running sums [steps + 1, rank] of bounds on the scores once they are drawn in."""

    most: FloatArray
    least: FloatArray
    least_scores: FloatArray
    """The lower bounds themselves [step, rank]."""

    @classmethod
    def of(cls, scores: FloatArray, reach: FloatArray) -> _Bounds:
        low, high = _medians(scores)
        most, least = np.maximum(scores, high - reach), np.minimum(scores, low + reach)
        return cls(_sums(most), _sums(least), least)


def _by_peers(scores: FloatArray, doubt: Doubt, budget: Budget) -> BoolArray:
    """Return which ranks may stand out against their replicas."""
    sums = _Bounds.of(scores, REACH * doubt.step).most
    longest = min(LONGEST, len(scores))
    recent = np.full((longest, scores.shape[1]), -np.inf)
    for count in range(SHORTEST, longest + 1):
        recent[count - 1] = (sums[count:] - sums[:-count]).max(axis=0) / count
    fresh = doubt.variance / np.arange(1.0, longest + 1)[:, None]
    variance = fresh + doubt.lasting**2
    border = borders(fresh / variance, budget, doubt.noise.degrees)
    strength = (recent / np.sqrt(variance) / border).max(axis=0, initial=-np.inf)
    return _is_reached(strength, 1.0) & _is_judged(scores)


def _by_past(
    scores: FloatArray, doubt: Doubt, budget: Budget, settings: DetectionSettings
) -> BoolArray:
    """Return which ranks may stand out against their own past, or may be suspected to."""
    steps, ranks = scores.shape
    bounds = _Bounds.of(scores, REACH * doubt.step)
    held = np.minimum(np.arange(1, steps + 1), LONGEST)
    joined, past = _pasts(bounds.least_scores, settings.memory_steps)
    before = joined[:, None] * past - bounds.least[np.arange(1, steps + 1) - held]
    strength = np.full(ranks, -np.inf)
    rooms = np.empty((2, steps, ranks))
    for count in range(SHORTEST, min(LONGEST, steps) + 1):
        before_count = joined + held - count
        first = max(int(np.searchsorted(before_count, settings.baseline_steps)), count - 1)
        if first >= steps:
            break
        begun = slice(first + 1 - count, steps + 1 - count)
        recent, usual = rooms[0][first:], rooms[1][first:]
        np.subtract(bounds.most[first + 1 :], bounds.most[begun], out=recent)
        recent /= count
        np.add(before[first:], bounds.least[begun], out=usual)
        usual /= before_count[first:, None]
        recent -= usual
        found = _strongest_excess(recent, before_count[first:], count, doubt, budget)
        strength = np.maximum(strength, found)
    return _is_reached(strength, SUSPICION) & _is_judged(scores)


def _strongest_excess(
    excess: FloatArray, before_count: FloatArray, count: int, doubt: Doubt, budget: Budget
) -> FloatArray:
    """Return a bound on excess over border [rank] of all stretches of one length.

    Args:
        excess: Bounds on the excess over the past [step, rank].
        before_count: Steps of the past, by step; it does not fall.
        count: Steps of the stretch.
        doubt: How wrong scores may be.
        budget: How often a healthy rank may be blamed.
    """
    starts = _growing(before_count)
    fewest = before_count[starts]
    most = before_count[np.append(starts[1:], len(before_count)) - 1]
    largest = np.maximum.reduceat(excess, starts, axis=0)
    fresh = doubt.variance / count
    least_variance = fresh + doubt.variance / most[:, None] + doubt.wander**2
    share = fresh / (fresh + doubt.variance / fewest[:, None] + doubt.wander**2)
    border = least_borders(share, count, budget, doubt.noise.degrees)
    return np.asarray((largest / np.sqrt(least_variance) / border).max(axis=0))


def _growing(before_count: FloatArray) -> IntArray:
    """Return the first position of each run in which a number of steps grows by little."""
    run = np.floor(np.log(before_count / before_count[0]) / np.log(_GROWTH))
    return np.flatnonzero(np.append(True, np.diff(run) > 0))


def _pasts(least: FloatArray, memory: int) -> tuple[FloatArray, FloatArray]:
    """Return after each step how many scores joined the past, and a lower bound on its mean [step, rank]."""
    joined = np.minimum(np.maximum(np.arange(1.0, len(least) + 1) - LONGEST, 0.0), memory)
    past = np.zeros_like(least)
    for step in range(LONGEST, len(least)):
        past[step] = past[step - 1] + (least[step - LONGEST] - past[step - 1]) / joined[step]
    return joined, past


def _medians(scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return bounds [rank] on the medians of all windows that the tests draw scores in to."""
    known = np.isfinite(scores)
    early = [
        middle_of(scores[:count], known[:count])
        for count in range(SHORTEST, min(LONGEST, len(scores)) + 1)
    ]
    whole = len(scores) // PART * PART
    if len(scores) <= LONGEST or not early:
        parts = np.zeros((0, 2, scores.shape[1]))
    else:
        split = scores[:whole].reshape(-1, PART, scores.shape[1])
        parts = np.partition(split, (_BELOW, _ABOVE), axis=1)[:, [_BELOW, _ABOVE]]
    low = np.concatenate([*(row[None] for row in early), parts[:, 0]])
    high = np.concatenate([*(row[None] for row in early), parts[:, 1]])
    return low.min(axis=0, initial=np.inf), high.max(axis=0, initial=-np.inf)


def _sums(values: FloatArray) -> FloatArray:
    """Return the sums of the first 0, 1, 2 … rows."""
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=sums[1:])
    return sums


def _is_reached(strength: FloatArray, border: float) -> BoolArray:
    """Return which strengths may reach a border; one that is not known may."""
    return ~(strength < border * (1.0 - _ROUNDING))


def _is_judged(scores: FloatArray) -> BoolArray:
    """Return which ranks have a score at all: nobody can blame the others."""
    return np.asarray(np.isfinite(scores).any(axis=0))


MOST_CELLS = 1 << 11
"""Windows that are judged at a time."""


class _Following(NamedTuple):
    """What follows a state of the scores when some steps are added."""

    scores: FloatArray
    """The recent ones and the new ones [step, rank]."""
    past: FloatArray
    """After each new step [step, rank]."""
    counts: FloatArray
    """Steps behind it."""

    def beside_each_other(self) -> Stretches:
        """Return the state after each step, each as ranks of its own."""
        recent = _windows(self.scores[1:], LONGEST)
        return Stretches(recent, self.past.ravel(), self.counts.ravel())

    def after(self, steps: int) -> Stretches:
        """Return the state after some steps."""
        recent = self.scores[steps : steps + LONGEST]
        return Stretches(recent, self.past[steps - 1], self.counts[steps - 1])


def follow(judge: Judge, own: FloatArray, peers: FloatArray, doubt: Doubt) -> list[Look]:
    """Return what ``Judge.see`` says after each step; no rank is known as slow.

    Args:
        judge: Has seen nothing yet.
        own: Scores against the own past [step, rank].
        peers: Scores against the replicas [step, rank].
        doubt: How wrong they may be.
    """
    steps, ranks = own.shape
    nobody = np.zeros(ranks, dtype=bool)
    looks = [
        judge.see(*pair, doubt, nobody) for pair in zip(own[:LONGEST], peers[:LONGEST], strict=True)
    ]
    at, most = min(LONGEST, steps), 1
    while at < steps:
        size = min(most, steps - at, max(MOST_CELLS // max(ranks, 1), 1))
        found = _ahead(judge, own[at : at + size], peers[at : at + size], doubt)
        looks += found
        at += len(found)
        # What changed once may change again at once.
        most = 2 * most if len(found) == size else 1
    return looks


def _ahead(judge: Judge, own: FloatArray, peers: FloatArray, doubt: Doubt) -> list[Look]:
    """Return the looks after some steps, up to the first after which another rank is suspected."""
    steps, ranks = own.shape
    calm = judge.look.past.strength < SUSPICION
    reach, memory = REACH * doubt.step, judge.settings.memory_steps
    by_past = _following(judge.own, own, calm, memory, reach)
    by_peers = _following(judge.peers, peers, np.ones(ranks, dtype=bool), memory, reach)
    tiled = _for_each(doubt, steps)
    past = judge.against_past(by_past.beside_each_other(), tiled)
    against = judge.against_peers(by_peers.beside_each_other(), tiled)
    differs = ((past.strength.reshape(steps, ranks) < SUSPICION) != calm).any(axis=1)
    kept = int(differs.argmax()) + 1 if differs.any() else steps
    looks = [Look(_of(past, at, ranks), _of(against, at, ranks)) for at in range(kept)]
    judge.go_on(by_past.after(kept), by_peers.after(kept), looks[-1])
    return looks


def _following(
    state: Stretches, scores: FloatArray, calm: BoolArray, memory: int, reach: FloatArray
) -> _Following:
    """Return what follows when scores [step, rank] are added while the same ranks stay calm."""
    whole = np.concatenate([state.recent, scores])
    windows = _windows(whole, LONGEST + 1)
    middle = middle_of(windows, np.isfinite(windows)).reshape(scores.shape)
    old = np.clip(whole[: len(scores)], middle - reach, middle + reach)
    past, count = np.empty_like(scores), np.empty_like(scores)
    now = state
    for step in range(len(scores)):
        past[step], count[step] = now.joined_by(old[step], calm, memory)
        now = replace(now, past=past[step], count=count[step])
    return _Following(whole, past, count)


def _windows(scores: FloatArray, length: int) -> FloatArray:
    """Return all windows of so many steps beside each other [step of the window, window and rank]."""
    windows = np.lib.stride_tricks.sliding_window_view(scores, length, axis=0)
    return np.ascontiguousarray(np.moveaxis(windows, -1, 0)).reshape(length, -1)


def _for_each(doubt: Doubt, steps: int) -> Doubt:
    """Return the doubt about ranks that are laid beside each other once for each step."""
    return replace(
        doubt,
        noise=replace(doubt.noise, sigma=np.tile(doubt.noise.sigma, steps)),
        lasting=np.tile(doubt.lasting, steps),
        wander=np.tile(doubt.wander, steps),
    )


def _of(found: Strongest, step: int, ranks: int) -> Strongest:
    part = slice(step * ranks, (step + 1) * ranks)
    return Strongest(found.strength[part], found.length[part])


class Tested(msgspec.Struct, frozen=True):
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
