"""Slow ranks of a recorded window.

Three tests look at the scores of every rank (``normalise``): its mean over the window
against its replicas; a stretch of steps above its replicas (Page's sum); and, from
``baseline_steps`` on, a stretch above its own past. The surest suspect is taken out of
all comparisons before the others are judged again, so that a slow rank neither makes
its peers look fast nor hides another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cube import BoolArray, FloatArray, IntArray
from .cusum import Excursion, largest_excursion
from .grid import Grid
from .history import SUSPICION, OwnHistory
from .noise import Noise, noise_of
from .normalise import (
    Line,
    Slopes,
    common_mode,
    item_mean,
    peer_scores,
    replica_mean,
    replica_sigma,
    step_scores,
)
from .settings import DetectionSettings
from .thresholds import (
    deviation_of_step,
    healthy_offset,
    healthy_spread,
    lasting_deviation,
    level_strength,
    own_border,
    reference_count,
    references_of,
)
from .work import WorkModel


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of a window [step, rank] with some ranks out of the comparisons."""

    peers: FloatArray
    """Against the replicas; NaN without."""
    own: FloatArray
    """Against the rank's own mean over the window."""
    noise: Noise
    reference_sigma: FloatArray
    """Noise of a step of the replicas of each rank: their median."""
    spread: float
    """Standard deviation of constant differences between healthy ranks."""
    replicas: IntArray
    """Trusted replicas of each rank."""
    referenced: BoolArray
    """Whether another place told the work of the rank."""
    unequal_work: FloatArray
    """Excess over the replicas per step that is due to other work, by rank."""


@dataclass(frozen=True, slots=True)
class Tested:
    """Outcome of the tests, by rank; strengths are statistic over threshold."""

    level: FloatArray
    peers: Excursion
    history: Excursion
    has_past: BoolArray

    @property
    def strength(self) -> FloatArray:
        """Return the largest of the three; an alarm from 1 on."""
        sums = np.maximum(self.peers.strength, self.history.strength)
        return np.asarray(np.fmax(self.level, sums))


class Window:
    """A recorded window: what does not depend on who is trusted."""

    def __init__(self, grid: Grid) -> None:
        """Fit the work and the slopes in one pass over the steps."""
        self.grid = grid
        self._work = self._fit_work(grid.cube.shape[2])
        self._slopes = Slopes.empty(grid.cube, len(grid.kinds))
        means = []
        for position in range(len(grid.steps)):
            step = self.durations(position)
            self._slopes.add(step)
            means.append(item_mean(step))
        self._means = np.stack(means)
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
        cube, positions = self.grid.cube, range(len(self.grid.steps))
        line, mean = self._slopes.line(trusted), _mean_over_steps(self._means)
        trims, own, errors, shared = [], [], [], []
        referenced = np.zeros(cube.shape, dtype=bool)
        for position in positions:
            scores = step_scores(self.durations(position), mean, line, trusted)
            trims.append(self._means[position] * scores.trim)
            shared.append(common_mode(scores, trusted))
            own.append(scores.total - shared[-1])
            errors.append(scores.error)
            referenced |= scores.referenced
        expected = replica_mean(_mean_over_steps(np.stack(trims)), line, trusted)
        peers = [
            peer_scores(self.durations(position), expected, mean, line, trusted) - shared[position]
            for position in positions
        ]
        own_by_rank = np.stack([cube.floats(x) for x in own])
        noise = noise_of(own_by_rank, np.stack([cube.floats(x) for x in errors]))
        by_rank = np.stack([cube.floats(x) for x in peers])
        replicas = cube.by_rank(trusted.sum(axis=1, keepdims=True) - trusted).astype(np.int64)
        return Scored(
            unequal_work=cube.floats(self._unequal_work(mean, trusted, np.stack(peers))),
            peers=by_rank,
            own=own_by_rank,
            noise=noise,
            reference_sigma=cube.floats(replica_sigma(cube.fill(noise.sigma), trusted)),
            spread=healthy_spread(
                _mean_over_steps(by_rank)[cube.by_rank(trusted).astype(bool)],
                float(np.median(noise.error(len(by_rank)))),
                cube.shape[1],
                settings,
            ),
            replicas=replicas,
            referenced=cube.by_rank(referenced).astype(bool),
        )

    def _unequal_work(self, mean: FloatArray, trusted: BoolArray, peers: FloatArray) -> FloatArray:
        """Return the excess over the replicas per step less that which the scores explain."""
        flat = Line(np.zeros((1, 1, mean.shape[2], mean.shape[3])), self.grid.cube.block)
        others = replica_mean(mean, flat, trusted)
        items = np.isfinite(self.durations(0)).sum(axis=-1)
        excess = ((mean - others) * items).sum(axis=-1)
        expected: FloatArray = (others * items).sum(axis=-1)
        return np.asarray(excess - _mean_over_steps(peers) * expected)

    def _fit_work(self, places: int) -> WorkModel | None:
        if self.grid.features is None:
            return None
        model = WorkModel.empty(places, len(self.grid.kinds), self.grid.features.shape[1])
        for position in range(len(self.grid.steps)):
            features = self.grid.step_features(position)
            if features is not None:
                model.add(self.grid.step(position), features)
        return model


def run_tests(scored: Scored, steps: IntArray, settings: DetectionSettings) -> Tested:
    """Return the outcome of the three tests on the scores of a window."""
    sigma = deviation_of_step(scored.noise, settings)
    reference = references_of(sigma, settings)
    border = own_border(reference, settings.baseline_steps, settings)
    offset = healthy_offset(_mean_over_steps(scored.peers), _lasting(scored, len(steps)))
    history, has_past = _history(scored.own, sigma, reference, settings)
    return Tested(
        level=level_strength(
            _mean_over_steps(scored.peers), level_error(scored, len(steps)), scored.noise, settings
        ),
        peers=largest_excursion((scored.peers - offset) / sigma, reference, border),
        history=history,
        has_past=has_past,
    )


def level_error(scored: Scored, steps: int) -> FloatArray:
    """Return the standard error of the mean score against replicas, healthy spread included."""
    return np.asarray(np.hypot(scored.noise.error(steps), _lasting(scored, steps)))


def _lasting(scored: Scored, steps: int) -> FloatArray:
    error = scored.reference_sigma * np.sqrt(scored.noise.inflation / steps)
    return lasting_deviation(scored.spread, error, reference_count(scored.replicas))


def _history(
    own: FloatArray, sigma: FloatArray, reference: FloatArray, settings: DetectionSettings
) -> tuple[Excursion, BoolArray]:
    """Return the strongest excursion of each rank above its own past, and who has one."""
    steps, ranks = own.shape
    seen, baseline = Excursion.none(ranks), settings.baseline_steps
    if steps <= baseline:
        return seen, np.zeros(ranks, dtype=bool)
    past = OwnHistory.after(own[:baseline], baseline, len(reference))
    for position in range(baseline, steps):
        border = own_border(reference, past.count, settings)
        past.add(position, past.excess(own[position]) / sigma, reference, border)
        seen.see(position, past.sums, border)
        calm = np.asarray((past.sums.level < SUSPICION * border).all(axis=0))
        past.learn(own[position], calm, settings.memory_steps)
    return seen, past.count > 0


def _mean_over_steps(values: FloatArray) -> FloatArray:
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=0)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, total / count, np.nan)
