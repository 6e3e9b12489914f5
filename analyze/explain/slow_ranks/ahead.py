"""Several steps of a recorded window are judged at a time.

A call for each step costs more than its arithmetic where few ranks are followed. So the windows that end
with each of some steps are laid beside each other, as if each were a rank. All that a step takes
from the one before is whether a rank is suspected, which holds its past still. That is expected to stay as
it is: steps after the first one that differs are judged anew. The result is the same to the last bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .judge import SUSPICION, Judge, Look
from .stretches import LONGEST, REACH, Stretches, Strongest, middle_of
from .uncertainty import Doubt

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
