"""Slow ranks of a running job, one step at a time.

What is kept is a few numbers a rank and kind, however long the job runs; a step costs
time in proportion to its durations. The scores and thresholds are those of the offline
detection; expectations come from the steps so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

from .cube import BoolArray, FloatArray, cube_of
from .cusum import PageSum, threshold_for
from .history import SUSPICION, OwnHistory
from .noise import RunningNoise, chance_of, quantile
from .normalise import (
    Scores,
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
from .verdict import Evidence, Persistence, RankVerdict
from .work import WorkModel

SIZES = 2
"""Slow-downs that are looked for: ``smallest`` and ``large``."""
FIRST_LEVEL_TEST = 5
"""Step of the first test of mean scores; the next ones come after twice as many each."""
RIVAL_SHARE = 0.5
MIN_STEPS = 3
"""Steps before the first alarm: the noise must be known."""


@dataclass(slots=True)
class _Alarm:
    """A rank that was found slow, and what it did since."""

    verdict: RankVerdict
    by_history: bool
    total: float
    """Sum of its excess since the first bad step."""
    count: float
    last_bad: int

    @property
    def slowdown(self) -> float:
        return self.total / max(self.count, 1.0)


class OnlineDetector:
    """Follows the own durations of all ranks of a job.

    Feed it one step after the other with ``update``; ``verdicts`` tells where every rank
    stands. It holds no clock and no thread, and never looks at a step twice.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        layout: ParallelLayout | None,
        kinds: int,
        settings: DetectionSettings | None = None,
    ) -> None:
        """Begin a job.

        Args:
            ranks: Global ranks, in the order of the first axis of the durations.
            layout: The mesh; without it all ranks count as replicas of each other.
            kinds: Length of the second axis of the durations (forward, backward …).
            settings: What counts as slow.
        """
        self._settings = settings or DetectionSettings()
        self._cube = cube_of(ranks, layout)
        self._kinds = kinds
        self._slopes = Slopes.empty(self._cube, kinds)
        self._work: WorkModel | None = None
        self._mean = np.full((*self._cube.shape, kinds), np.nan)
        self._steps = 0
        self._first_step = 0
        self._trusted = self._cube.present
        count = len(ranks)
        self._noise = RunningNoise(count, self._settings.memory_steps)
        self._peers = PageSum.empty(count, SIZES)
        self._recovery = PageSum.empty(count)
        self._history: OwnHistory | None = None
        self._level = np.full(count, np.nan)
        self._alarms: dict[int, _Alarm] = {}

    def update(
        self, step: int, durations: npt.ArrayLike, features: npt.ArrayLike | None = None
    ) -> tuple[RankVerdict, ...]:
        """Take in one step and return the verdicts on ranks newly found slow.

        Args:
            step: Its number, larger than that of the step before.
            durations: [rank, kind, item] own durations in any unit; the items are the
                microbatches, in the same order on all ranks; NaN where there is none.
            features: [rank, kind, item, feature] what is known of the work, for instance
                tokens and the sum of squared sequence lengths; given in all steps or none.

        Raises:
            ConfigError: The durations have another shape than the job.
        """
        values = np.asarray(durations, dtype=np.float64)
        if values.ndim != 3 or values.shape[:2] != (len(self._cube.ranks), self._kinds):
            raise ConfigError(
                f"have shape {values.shape}, not ({len(self._cube.ranks)}, {self._kinds}, items)",
                where="durations",
            )
        cells = self._at_average_work(self._cube.fill(values), features)
        self._slopes.add(cells)
        found: tuple[RankVerdict, ...] = ()
        if not self._steps:
            self._first_step = step
        trim = np.ones_like(self._mean)
        if self._steps:
            scores = step_scores(cells, self._mean, self._slopes.line(self._trusted), self._trusted)
            trim = scores.trim
            found = self._look(step, cells, scores)
        self._steps += 1
        self._learn_mean(item_mean(cells) * trim)
        return found

    def verdicts(self) -> tuple[RankVerdict, ...]:
        """Return the verdict on every rank, in the order of the ranks."""
        known = np.isfinite(self._level)
        has_past = self._history is not None
        return tuple(
            self._alarms[position].verdict
            if position in self._alarms
            else _unsuspected(rank, float(self._level[position]), bool(known[position]) or has_past)
            for position, rank in enumerate(self._cube.ranks)
        )

    def _at_average_work(self, cells: FloatArray, features: npt.ArrayLike | None) -> FloatArray:
        if features is None:
            return cells
        work = self._cube.fill(features)
        if self._work is None:
            self._work = WorkModel.empty(cells.shape[2], self._kinds, work.shape[-1])
        self._work.add(cells, work)
        return self._work.without_work(cells, work)

    def _look(self, step: int, cells: FloatArray, scores: Scores) -> tuple[RankVerdict, ...]:
        """Score one step, add it to all sums and return new alarms."""
        shared = common_mode(scores, self._trusted)
        own = self._by_rank(scores.total - shared)
        self._noise.add(own, self._by_rank(scores.error))
        line = self._slopes.line(self._trusted)
        expected = replica_mean(self._mean, line, self._trusted)
        against = peer_scores(cells, expected, self._mean, line, self._trusted)
        peers = self._by_rank(against - shared)
        self._level = self._moved_level(peers)
        if self._steps < MIN_STEPS - 1:
            return ()
        sigma = deviation_of_step(self._noise.noise(), self._settings)
        self._follow_alarms(step, peers, own, sigma)
        reference = references_of(sigma, self._settings)
        border = self._border(sigma)
        self._peers.add(step, (peers - self._offset(sigma)) / sigma, reference, border)
        if self._history is not None:
            self._history.add(step, self._history.excess(own) / sigma, reference, border)
            self._learn_history(own, sigma)
        told = self._by_rank(scores.referenced.astype(np.float64)) > 0
        return self._new_alarms(step, sigma, told)

    def _spread(self, sigma: FloatArray) -> float:
        """Return the constant differences that healthy ranks have."""
        trusted = self._by_rank(self._trusted.astype(np.float64)) > 0
        error = float(np.median(sigma)) / np.sqrt(self._steps)
        replicas = self._cube.shape[1]
        return healthy_spread(self._level[trusted], error, replicas, self._settings)

    def _references(self) -> FloatArray:
        """Return how many ranks the replicas of each rank are worth."""
        others = self._trusted.sum(axis=1, keepdims=True) - self._trusted
        return reference_count(self._by_rank(others).astype(np.int64))

    def _lasting(self, sigma: FloatArray) -> FloatArray:
        """Return the deviation of differences to replicas that do not average out."""
        reference = replica_sigma(self._cube.fill(sigma), self._trusted)
        steps = min(self._steps, self._settings.baseline_steps)
        error = self._by_rank(reference) / sqrt(steps)
        return lasting_deviation(self._spread(sigma), error, self._references())

    def _offset(self, sigma: FloatArray) -> FloatArray:
        """Return the part of the ranks' differences to their replicas that is healthy."""
        return healthy_offset(self._level, self._lasting(sigma))

    def _level_strength(self, sigma: FloatArray) -> FloatArray:
        """Return the test of mean scores where it is due, 0 else."""
        tests = (self._steps + 1) / FIRST_LEVEL_TEST
        if tests < 1 or 2 ** round(np.log2(tests)) != tests:
            return np.zeros(len(sigma))
        error = np.hypot(sigma / sqrt(self._steps), self._lasting(sigma))
        strength = level_strength(self._level, error, self._noise.noise(), self._settings)
        return np.nan_to_num(strength)

    def _border(self, sigma: FloatArray) -> FloatArray:
        past: float | FloatArray = float(self._settings.baseline_steps)
        if self._history is not None:
            past = np.maximum(self._history.count, past)
        return own_border(references_of(sigma, self._settings), past, self._settings)

    def _new_alarms(self, step: int, sigma: FloatArray, told: BoolArray) -> tuple[RankVerdict, ...]:
        """Return alarms, the strongest first; each clears the sums of those compared with it."""
        border = self._border(sigma)
        level = self._level_strength(sigma)
        found: list[RankVerdict] = []
        while True:
            peers = np.maximum((self._peers.level / border).max(axis=0), level)
            history = np.zeros_like(peers)
            if self._history is not None:
                history = (self._history.sums.level / border).max(axis=0)
            strength = np.maximum(peers, history)
            strength[list(self._alarms)] = 0.0
            position = int(strength.argmax())
            if strength[position] < 1.0:
                return tuple(found)
            by_history = bool(history[position] > peers[position])
            sums = self._history.sums if by_history and self._history else self._peers
            rivals = () if history[position] >= 1.0 else self._rivals(position, strength)
            alarm = self._alarm(step, position, sums, sigma, rivals)
            alarm.by_history = by_history
            kind = Evidence.WORK if told[position] else Evidence.PEERS
            alarm.verdict = replace(
                alarm.verdict, evidence=Evidence.HISTORY if by_history else kind
            )
            self._alarms[position] = alarm
            found.append(alarm.verdict)
            self._set_trusted(position, trusted=False)
            self._peers.reset(self._neighbours(position))
            level = np.where(self._neighbours(position), 0.0, level)

    def _alarm(
        self,
        step: int,
        position: int,
        sums: PageSum,
        sigma: FloatArray,
        rivals: tuple[int, ...],
    ) -> _Alarm:
        size = int((sums.level / self._border(sigma))[:, position].argmax())
        count = float(sums.count[size, position])
        total = float(sums.total[size, position] * sigma[position])
        since = int(sums.since[size, position])
        if not count:
            count = float(self._steps)
            total, since = float(self._level[position]) * count, self._first_step
        degrees = self._noise.noise().degrees
        slowdown, error = total / count, float(sigma[position]) / sqrt(count)
        width = quantile(0.025, degrees) * error
        chance = len(sigma) * chance_of(slowdown / error, degrees)
        verdict = RankVerdict(
            rank=self._cube.ranks[position],
            persistence=Persistence.PERSISTENT,
            slowdown=slowdown,
            interval=(slowdown - width, slowdown + width),
            first_bad_step=since,
            last_bad_step=step,
            found_at_step=step,
            evidence=Evidence.PEERS,
            confidence=min(0.999, max(0.0, 1.0 - chance)) / (1 + len(rivals)),
            minimum_slowdown=None,
            ambiguous_with=tuple(self._cube.ranks[rival] for rival in rivals),
        )
        return _Alarm(verdict, by_history=False, total=total, count=count, last_bad=step)

    def _rivals(self, position: int, strength: FloatArray) -> tuple[int, ...]:
        """Return other ranks that stand out as much and are compared with this one."""
        alike = strength >= RIVAL_SHARE * strength[position]
        alike &= self._diagonal(position)
        alike[position] = False
        return tuple(int(rank) for rank in np.flatnonzero(alike))

    def _diagonal(self, position: int) -> BoolArray:
        cube = self._cube
        return np.asarray(
            (cube.lane == cube.lane[position])
            & (cube.replica != cube.replica[position])
            & (cube.place != cube.place[position])
        )

    def _neighbours(self, position: int) -> BoolArray:
        """Return the ranks whose comparison a rank takes part in."""
        return np.asarray(self._cube.lane == self._cube.lane[position])

    def _follow_alarms(
        self, step: int, peers: FloatArray, own: FloatArray, sigma: FloatArray
    ) -> None:
        """Take in what slow ranks did in this step; those that recovered are trusted again."""
        if not self._alarms:
            return
        past = own if self._history is None else self._history.excess(own)
        relief = np.full(len(sigma), np.nan)
        reference = np.ones(len(sigma))
        for position, alarm in self._alarms.items():
            if alarm.verdict.persistence is not Persistence.PERSISTENT:
                continue
            value = past[position] if alarm.by_history else peers[position]
            relief[position] = (alarm.slowdown - value) / sigma[position]
            reference[position] = min(alarm.slowdown / 2 / sigma[position], 2.0)
        border = threshold_for(self._settings.steps_between_false_alarms, reference)
        self._recovery.add(step, relief, reference[None], border[None])
        for position, alarm in list(self._alarms.items()):
            if not np.isfinite(relief[position]):
                continue
            if self._recovery.level[0, position] >= border[position]:
                self._recover(position, alarm)
            elif self._recovery.level[0, position] <= 0:
                value = past[position] if alarm.by_history else peers[position]
                alarm.total, alarm.count = alarm.total + value, alarm.count + 1
                alarm.last_bad = step
                alarm.verdict = replace(alarm.verdict, slowdown=alarm.slowdown, last_bad_step=step)

    def _recover(self, position: int, alarm: _Alarm) -> None:
        alarm.verdict = replace(
            alarm.verdict, persistence=Persistence.TRANSIENT, last_bad_step=alarm.last_bad
        )
        self._set_trusted(position, trusted=True)
        self._recovery.reset(np.arange(len(self._cube.ranks)) == position)

    def _set_trusted(self, position: int, *, trusted: bool) -> None:
        cube = self._cube
        place = cube.lane[position], cube.replica[position], cube.place[position]
        self._trusted = self._trusted.copy()
        self._trusted[place] = trusted

    def _learn_mean(self, mean: FloatArray) -> None:
        """Average the first steps; then the expectation stays, and the history follows drift."""
        if self._history is not None:
            return
        fresh = np.isnan(self._mean)
        moved = self._mean + (mean - self._mean) / self._steps
        self._mean = np.where(fresh, mean, np.where(np.isnan(moved), self._mean, moved))
        if self._steps >= self._settings.baseline_steps:
            ranks = len(self._cube.ranks)
            seen = self._by_rank(np.isfinite(self._mean).any(axis=-1).astype(np.float64)) > 0
            self._history = OwnHistory.after(
                np.zeros((1, ranks)), self._settings.baseline_steps, SIZES
            )
            self._history.count = np.where(seen, float(self._steps), 0.0)

    def _learn_history(self, own: FloatArray, sigma: FloatArray) -> None:
        if self._history is None:
            return
        level = self._history.sums.level
        calm = np.asarray((level < SUSPICION * self._border(sigma)).all(axis=0))
        calm[list(self._alarms)] = False
        self._history.learn(own, calm, self._settings.memory_steps)

    def _moved_level(self, peers: FloatArray) -> FloatArray:
        """Return the running mean of the scores against replicas."""
        weight = 1.0 / min(self._steps, self._settings.memory_steps)
        moved = self._level + weight * (peers - self._level)
        return np.where(np.isnan(self._level), peers, np.where(np.isnan(moved), self._level, moved))

    def _by_rank(self, cells: FloatArray) -> FloatArray:
        return self._cube.floats(cells)


def _unsuspected(rank: int, level: float, is_known: bool) -> RankVerdict:  # noqa: FBT001
    return RankVerdict(
        rank=rank,
        persistence=Persistence.NONE if is_known else Persistence.UNKNOWN,
        slowdown=level if np.isfinite(level) else None,
        interval=None,
        first_bad_step=None,
        last_bad_step=None,
        found_at_step=None,
        evidence=Evidence.PEERS if np.isfinite(level) else Evidence.NOTHING,
        confidence=0.95 if is_known else 0.0,
        minimum_slowdown=None,
    )
