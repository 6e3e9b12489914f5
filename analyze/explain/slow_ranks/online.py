"""Slow ranks of a running job, one step at a time.

The first steps are scored as a recorded window is (``window``), after each of them anew. Then their
means are what every rank is expected to take, and what is kept is a few numbers a rank and kind
and the scores of the last steps, however long the job runs; a step costs time in proportion to its
durations. The tests are those of the recorded window (``judge``).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

from ...tables.arrays import BoolArray, FloatArray
from ...wording.message import message
from .alarms import Alarms
from .conclude import Measured, calm_verdict
from .cube import Cube, cube_of
from .judge import Budgets, Judge, least_visible, running_budgets
from .noise import RunningNoise
from .normalise import Slopes, common_mode, peer_scores, replica_mean, step_scores
from .settings import DetectionSettings
from .uncertainty import Doubt, comparison_of, doubt_of
from .verdict import Evidence, RankVerdict
from .window import Window, mean_over_steps
from .work import WorkModel


class FirstSteps(msgspec.Struct):
    """Durations, and what is known of their work, in the order of the steps."""

    cube: Cube
    kinds: int
    _durations: list[FloatArray] = msgspec.field(default_factory=list)
    _features: list[FloatArray | None] = msgspec.field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the number of steps, kinds and items."""
        items = max(step.shape[-1] for step in self._durations)
        return len(self._durations), self.kinds, items

    def add(self, durations: FloatArray, features: FloatArray | None) -> None:
        """Keep one more step [lane, replica, place, kind, item] and its features."""
        self._durations.append(durations)
        self._features.append(features)

    def step(self, position: int) -> FloatArray:
        """Return the durations of one step."""
        return self._padded(self._durations[position])

    def step_features(self, position: int) -> FloatArray | None:
        """Return what is known of their work, with one more axis."""
        features = self._features[position]
        return None if features is None else self._padded(features)

    def _padded(self, values: FloatArray) -> FloatArray:
        """Return values with as many items as the step that has most."""
        absent = self.shape[2] - values.shape[4]
        return np.pad(
            values,
            [(0, absent if axis == 4 else 0) for axis in range(values.ndim)],
            constant_values=np.nan,
        )


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
        self._known: FirstSteps | _Usual = FirstSteps(self._cube, kinds)
        self._steps = 0
        self._trusted = self._cube.present
        self._noise = RunningNoise(len(ranks), self._settings.memory_steps)
        self._doubt: Doubt | None = None
        self._judge = Judge(len(ranks), self._settings, self._budgets())
        self._level = np.full(len(ranks), np.nan)
        self._by_work = np.zeros(len(ranks), dtype=bool)
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
                message(
                    "refused.shape_of_durations",
                    shape=values.shape,
                    ranks=len(self._cube.ranks),
                    kinds=self._kinds,
                ),
                where="durations",
            )
        cells = self._cube.fill(values)
        work = None if features is None else self._cube.fill(features)
        self._steps += 1
        if isinstance(self._known, FirstSteps):
            self._known.add(cells, work)
            return self._learn(step, self._known)
        return self._look(step, cells, work, self._known)

    def verdicts(self) -> tuple[RankVerdict, ...]:
        """Return the verdict on every rank, in the order of the ranks."""
        doubt = self._doubt
        if doubt is None:
            return tuple(calm_verdict(r, None, Evidence.NOTHING) for r in self._cube.ranks)
        least = least_visible(doubt, self._steps, self._judge.budgets, self._settings)
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
        evidence = Evidence.WORK if self._by_work[position] else Evidence.PEERS
        return calm_verdict(rank, measured, evidence)

    def _learn(self, step: int, first: FirstSteps) -> tuple[RankVerdict, ...]:
        """Score one of the first steps with those before it; the last one settles what is usual."""
        window, judge = Window(first), self._judge
        scored = window.score(self._trusted, self._settings)
        self._by_work = scored.referenced
        self._level = mean_over_steps(scored.peers)
        judge.recall(scored.own[:-1], scored.peers[:-1], self._alarms.blamed)
        found = self._judged(step, scored.own[-1], scored.peers[-1], scored.doubt)
        if self._steps == self._settings.baseline_steps:
            scored = window.score(self._trusted, self._settings)
            judge.recall(scored.own, scored.peers, self._alarms.blamed)
            for own, error in zip(scored.own, scored.errors, strict=True):
                self._noise.add(own, error)
            self._known = _Usual(
                scored.mean, scored.trimmed, window.slopes, window.work, window.is_known
            )
        return found

    def _look(
        self, step: int, cells: FloatArray, work: FloatArray | None, usual: _Usual
    ) -> tuple[RankVerdict, ...]:
        """Score one step, test the stretches that end with it and return new alarms."""
        by_rank = self._cube.floats
        cells, trusted = usual.at_average_work(cells, work), self._trusted
        usual.slopes.add(cells)
        line = usual.slopes.line(trusted)
        scores = step_scores(cells, usual.mean, line, trusted)
        shared = common_mode(scores, trusted)
        own = by_rank(scores.total - shared)
        self._noise.add(own, by_rank(scores.error))
        expected = replica_mean(usual.trimmed, line, trusted)
        peers = by_rank(peer_scores(cells, expected, usual.mean, line, trusted) - shared)
        self._level = self._moved_level(peers)
        self._by_work = self._cube.by_rank(scores.referenced | usual.is_known).astype(bool)
        doubt = doubt_of(
            self._noise.noise(),
            self._level,
            comparison_of(self._cube, trusted, line),
            self._settings.baseline_steps,
            self._settings,
        )
        return self._judged(step, own, peers, doubt)

    def _judged(
        self, step: int, own: FloatArray, peers: FloatArray, doubt: Doubt
    ) -> tuple[RankVerdict, ...]:
        self._doubt = doubt
        self._judge.budgets = self._budgets()
        look = self._judge.see(own, peers, doubt, self._alarms.slow)
        found = self._alarms.update(step, look, self._judge, doubt, self._by_work)
        self._trusted = self._cube.fill(~self._alarms.slow) == 1.0
        return found

    def _budgets(self) -> Budgets:
        return running_budgets(len(self._cube.ranks), self._steps, self._settings, self._doubt)

    def _moved_level(self, peers: FloatArray) -> FloatArray:
        """Return the running mean of the scores against replicas."""
        weight = 1.0 / min(self._steps, self._settings.memory_steps)
        moved = self._level + weight * (peers - self._level)
        return np.where(np.isnan(self._level), peers, np.where(np.isnan(moved), self._level, moved))


class _Usual(msgspec.Struct):
    """What the first steps showed: how long every rank takes, and how places share work."""

    mean: FloatArray
    """[lane, replica, place, kind]."""
    trimmed: FloatArray
    """The same with outliers drawn in."""
    slopes: Slopes
    work: WorkModel | None
    is_known: BoolArray
    """[lane, replica, place] whose work the sequences tell."""

    def at_average_work(self, cells: FloatArray, work: FloatArray | None) -> FloatArray:
        """Return the durations of a step as they would be with the usual work."""
        if work is None or self.work is None:
            return cells
        self.work.add(cells, work)
        return self.work.without_work(cells, work)
