"""The scores of a recorded window, and the tests on them.

The window is scored as a whole, against the means of all its steps; then the tests
follow it step by step, as they do in a running job, and the strongest stretch of each rank is
kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .cube import BoolArray, Cube, FloatArray
from .doubt import Comparison, Doubt, comparison_of, doubt_of
from .grid import Grid
from .judge import Judge, window_budgets
from .noise import noise_of
from .normalise import (
    Line,
    Slopes,
    common_mode,
    item_mean,
    peer_scores,
    replica_mean,
    step_scores,
)
from .settings import DetectionSettings
from .stretches import Peak
from .work import WorkModel

CHUNK_CELLS = 1 << 20
"""Durations that are scored at a time, so that memory does not grow with the window."""
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of a window [step, rank] with some ranks out of the comparisons."""

    peers: FloatArray
    """Against the replicas; NaN without."""
    own: FloatArray
    """Against the rank's own mean over the window."""
    comparison: Comparison
    doubt: Doubt
    referenced: BoolArray
    """Whether another place told the work of the rank."""
    unequal_work: FloatArray
    """Excess over the replicas per step that is due to other work, by rank."""


@dataclass(frozen=True, slots=True)
class Tested:
    """The strongest stretches against the own past and against the replicas."""

    past: Peak
    peers: Peak

    @property
    def strength(self) -> FloatArray:
        """Return the larger of the two; an alarm from 1 on."""
        return np.asarray(np.maximum(self.past.strength, self.peers.strength))


class Window:
    """A recorded window: what does not depend on who is trusted."""

    def __init__(self, grid: Grid) -> None:
        """Fit the work and the slopes in one pass over the steps."""
        self.grid = grid
        self._work = self._fit_work(grid.cube.shape[2])
        self._slopes = Slopes.empty(grid.cube, len(grid.kinds))
        means = []
        for _, cells in self._chunks():
            self._slopes.add(cells)
            means.append(_by_step(item_mean(cells), grid.cube))
        self._means = np.concatenate(means)
        self.sees_work = bool(self._slopes.line(grid.cube.present).slope.any())

    def durations(self, position: int) -> FloatArray:
        """Return the durations of a step, at average work where the work is known."""
        step = self.grid.step(position)
        features = self.grid.step_features(position)
        if self._work is None or features is None:
            return step
        return self._work.without_work(step, features)

    def score(self, trusted: BoolArray, settings: DetectionSettings) -> Scored:
        """Return the scores of all ranks against trusted ones."""
        cube = self.grid.cube
        line, mean = self._slopes.line(trusted), mean_over_steps(self._means)
        trims, own, errors, shared = [], [], [], []
        referenced = np.zeros(cube.shape, dtype=bool)
        for first, cells in self._chunks():
            steps = len(cells) // cube.shape[0]
            scores = step_scores(cells, _repeated(mean, steps), line, _repeated(trusted, steps))
            common = common_mode(scores, trusted, steps)
            trims.append(self._means[first : first + steps] * _by_step(scores.trim, cube))
            shared.append(common)
            own.append(cube.each(_by_step(scores.total - common, cube)))
            errors.append(cube.each(_by_step(scores.error, cube)))
            referenced |= _by_step(scores.referenced, cube).any(axis=0)
        expected = replica_mean(mean_over_steps(np.concatenate(trims)), line, trusted)
        peers = []
        for (_, cells), common in zip(self._chunks(), shared, strict=True):
            steps = len(cells) // cube.shape[0]
            means = _repeated(expected, steps), _repeated(mean, steps)
            scored = peer_scores(cells, *means, line, _repeated(trusted, steps))
            peers.append(_by_step(scored - common, cube))
        against = np.concatenate(peers)
        by_rank, own_by_rank = cube.each(against), np.concatenate(own)
        noise = noise_of(own_by_rank, np.concatenate(errors))
        comparison = comparison_of(cube, trusted, line)
        return Scored(
            unequal_work=cube.floats(self._unequal_work(mean, trusted, against)),
            peers=by_rank,
            own=own_by_rank,
            comparison=comparison,
            doubt=doubt_of(noise, mean_over_steps(by_rank), comparison, len(by_rank), settings),
            referenced=cube.by_rank(referenced).astype(bool),
        )

    def _chunks(self) -> Iterator[tuple[int, FloatArray]]:
        """Yield some steps at a time, one after the other along the lanes, with their first."""
        steps = len(self.grid.steps)
        cells = int(np.prod(self.grid.cube.shape)) * len(self.grid.kinds) * self.grid.items
        size = max(1, CHUNK_CELLS // cells)
        for first in range(0, steps, size):
            last = min(first + size, steps)
            yield first, np.concatenate([self.durations(at) for at in range(first, last)])

    def _unequal_work(self, mean: FloatArray, trusted: BoolArray, peers: FloatArray) -> FloatArray:
        """Return the excess over the replicas per step less that which the scores explain."""
        flat = Line(np.zeros((1, 1, mean.shape[2], mean.shape[3])), self.grid.cube.block)
        others = replica_mean(mean, flat, trusted)
        items = np.isfinite(self.durations(0)).sum(axis=-1)
        excess = ((mean - others) * items).sum(axis=-1)
        expected: FloatArray = (others * items).sum(axis=-1)
        return np.asarray(excess - mean_over_steps(peers) * expected)

    def _fit_work(self, places: int) -> WorkModel | None:
        if self.grid.features is None:
            return None
        model = WorkModel.empty(places, len(self.grid.kinds), self.grid.features.shape[1])
        for position in range(len(self.grid.steps)):
            features = self.grid.step_features(position)
            if features is not None:
                model.add(self.grid.step(position), features)
        return model


def run_tests(scored: Scored, settings: DetectionSettings) -> Tested:
    """Return the strongest stretches of all ranks of a window."""
    steps, ranks = scored.own.shape
    judge = Judge(ranks, settings, window_budgets(ranks, steps, settings))
    tested = Tested(Peak.none(ranks), Peak.none(ranks))
    nobody = np.zeros(ranks, dtype=bool)
    for position in range(steps):
        look = judge.see(scored.own[position], scored.peers[position], scored.doubt, nobody)
        tested.past.see(position, look.past)
        tested.peers.see(position, look.peers)
    return tested


def _repeated(values: npt.NDArray[T], steps: int) -> npt.NDArray[T]:
    """Return the values of one step [lane, …] for several, one after the other."""
    return np.tile(values, (steps, *(1,) * (values.ndim - 1)))


def _by_step(values: npt.NDArray[T], cube: Cube) -> npt.NDArray[T]:
    """Return values of several steps, one after the other along the lanes, as [step, lane, …]."""
    return values.reshape(-1, *cube.shape, *values.shape[3:])


def mean_over_steps(values: FloatArray) -> FloatArray:
    """Return the mean over the first axis of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=0)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, total / count, np.nan)
