"""Slow ranks of a running job, one step at a time.

What is kept is a few numbers a rank and kind and the scores of the last steps, however
long the job runs; a step costs time in proportion to its durations. The scores and the tests are
those of the recorded window (``judge``); expectations come from the steps so far.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

from .alarms import Alarms
from .conclude import Measured, calm_verdict
from .cube import FloatArray, cube_of
from .doubt import Doubt, comparison_of, doubt_of
from .judge import Judge, least_visible, running_budgets
from .noise import RunningNoise
from .normalise import (
    Line,
    Scores,
    Slopes,
    common_mode,
    item_mean,
    peer_scores,
    replica_mean,
    step_scores,
)
from .settings import DetectionSettings
from .verdict import Evidence, RankVerdict
from .work import WorkModel


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
        self._trusted = self._cube.present
        self._noise = RunningNoise(len(ranks), self._settings.memory_steps)
        self._budgets = running_budgets(len(ranks), self._settings)
        self._judge = Judge(len(ranks), self._settings, self._budgets)
        self._level = np.full(len(ranks), np.nan)
        self._doubt: Doubt | None = None
        self._told = np.zeros(len(ranks), dtype=bool)
        self._alarms = Alarms(self._cube)

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
        trim = np.ones_like(self._mean)
        if self._steps:
            line = self._slopes.line(self._trusted)
            scores = step_scores(cells, self._mean, line, self._trusted)
            trim = scores.trim
            found = self._look(step, cells, scores, line)
        self._steps += 1
        self._learn_mean(item_mean(cells) * trim)
        return found

    def verdicts(self) -> tuple[RankVerdict, ...]:
        """Return the verdict on every rank, in the order of the ranks."""
        doubt = self._doubt
        if doubt is None:
            return tuple(calm_verdict(r, None, Evidence.NOTHING) for r in self._cube.ranks)
        least = least_visible(doubt, self._steps, self._budgets, self._settings)
        error = doubt.error(self._steps)
        verdicts = []
        for position in range(len(self._cube.ranks)):
            alarm = self._alarms.get(position)
            verdict = alarm.verdict if alarm else self._calm(position, error, doubt)
            known = float(least[position]) if np.isfinite(least[position]) else None
            verdicts.append(replace(verdict, minimum_slowdown=known))
        return tuple(verdicts)

    def _calm(self, position: int, error: FloatArray, doubt: Doubt) -> RankVerdict:
        rank, level = self._cube.ranks[position], float(self._level[position])
        if not np.isfinite(level):
            has_past = self._steps > self._settings.baseline_steps
            return calm_verdict(rank, None, Evidence.HISTORY if has_past else Evidence.NOTHING)
        degrees = doubt.noise.degrees
        measured = Measured(slowdown=level, error=float(error[position]), degrees=degrees)
        told = Evidence.WORK if self._told[position] else Evidence.PEERS
        return calm_verdict(rank, measured, told)

    def _at_average_work(self, cells: FloatArray, features: npt.ArrayLike | None) -> FloatArray:
        if features is None:
            return cells
        work = self._cube.fill(features)
        if self._work is None:
            self._work = WorkModel.empty(cells.shape[2], self._kinds, work.shape[-1])
        self._work.add(cells, work)
        return self._work.without_work(cells, work)

    def _look(
        self, step: int, cells: FloatArray, scores: Scores, line: Line
    ) -> tuple[RankVerdict, ...]:
        """Score one step, test the stretches that end with it and return new alarms."""
        by_rank = self._cube.floats
        shared = common_mode(scores, self._trusted)
        own = by_rank(scores.total - shared)
        self._noise.add(own, by_rank(scores.error))
        expected = replica_mean(self._mean, line, self._trusted)
        against = peer_scores(cells, expected, self._mean, line, self._trusted)
        peers = by_rank(against - shared)
        self._level = self._moved_level(peers)
        self._told = by_rank(scores.referenced.astype(np.float64)) > 0
        noise, comparison = self._noise.noise(), comparison_of(self._cube, self._trusted, line)
        learnt = min(self._steps, self._settings.baseline_steps)
        doubt = doubt_of(noise, self._level, comparison, learnt, self._settings)
        self._doubt = doubt
        if not self._has_past:
            own = np.full_like(own, np.nan)
        look = self._judge.see(own, peers, doubt, self._alarms.slow)
        found = self._alarms.update(step, look, self._judge, doubt, self._told)
        self._trusted = self._cube.fill(~self._alarms.slow) == 1.0
        return found

    @property
    def _has_past(self) -> bool:
        return self._steps >= self._settings.baseline_steps

    def _learn_mean(self, mean: FloatArray) -> None:
        """Average the first steps; then the expectation stays, and the past follows drift."""
        if self._steps > self._settings.baseline_steps:
            return
        fresh = np.isnan(self._mean)
        moved = self._mean + (mean - self._mean) / self._steps
        self._mean = np.where(fresh, mean, np.where(np.isnan(moved), self._mean, moved))
        if self._steps == self._settings.baseline_steps:
            seen = self._cube.floats(np.isfinite(self._mean).any(axis=-1).astype(np.float64))
            self._judge.own.count = seen * self._steps

    def _moved_level(self, peers: FloatArray) -> FloatArray:
        """Return the running mean of the scores against replicas."""
        weight = 1.0 / min(self._steps, self._settings.memory_steps)
        moved = self._level + weight * (peers - self._level)
        return np.where(np.isnan(self._level), peers, np.where(np.isnan(moved), self._level, moved))
