"""What-if replays of a job: some operations at their recorded length, the others at their ideal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ..replay.offsets import replay_offsets
from . import optypes as op
from .graph import JobGraph, job_graph, launch_delays, observed_lengths
from .job import Job, Pattern
from .rules import dependencies

BLOCK_VALUES = 1_000_000
"""Node times computed together; bounds the memory of a replay to some 30 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What scenarios choose operations by; one row an operation, all replicas."""

    optype: IntArray
    """Position in ``optypes.KNOWN``."""
    seq: IntArray
    stage: IntArray
    dp_rank: IntArray
    rank: IntArray


Choice = Callable[[Labels], BoolArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Which operations keep what was recorded of them."""

    own_length: Choice
    """These keep their lengths, the others are ideal."""
    delayed: Choice | None = None
    """These keep their launch delays, the others start as soon as they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Step times in seconds, ``(scenarios, steps)``, steps in ascending order."""

    span_s: FloatArray
    """From the first start to the last end of any operation."""
    finish_s: FloatArray
    """To the last end of an optimizer."""


def everything(labels: Labels) -> BoolArray:
    """Choose all operations."""
    return np.ones(len(labels.stage), np.bool_)


def nothing(labels: Labels) -> BoolArray:
    """Choose no operation."""
    return np.zeros(len(labels.stage), np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A pattern with its graph, and what was observed and is ideal for its operations."""

    pattern: Pattern
    graph: JobGraph
    labels: Labels
    length_s: FloatArray
    delay_s: FloatArray


class Replayer:
    """Replays the whole steps of one job.

    Raises:
        ValueError: Operations wait for each other in a circle.
    """

    def __init__(self, job: Job) -> None:
        self.unmatched = 0
        self._models = [self._model(job, pattern) for pattern in job.patterns]
        self._ideal_s = _ideal_lengths(self._models)
        steps = np.concatenate([pattern.steps for pattern in job.patterns])
        self._order = np.argsort(steps)
        self.steps: IntArray = steps[self._order]

    def _model(self, job: Job, pattern: Pattern) -> _Model:
        replicas = len(job.dp_ranks)
        found = dependencies(pattern.operations)
        self.unmatched += found.unmatched
        return _Model(
            pattern=pattern,
            graph=job_graph(found, len(pattern.operations), replicas),
            labels=_labels(job, pattern),
            length_s=observed_lengths(found, pattern, replicas),
            delay_s=launch_delays(found, pattern, replicas),
        )

    @property
    def labels(self) -> list[Labels]:
        """Return the labels of the operations, pattern by pattern."""
        return [model.labels for model in self._models]

    def measured_s(self) -> FloatArray:
        """Return the recorded length of each step, first start to last end."""
        patterns = [model.pattern for model in self._models]
        lengths = [own.end_s.max(axis=0) - own.start_s.min(axis=0) for own in patterns]
        return np.asarray(self._by_step([length[None] for length in lengths])[0])

    def replay(self, scenarios: Sequence[Scenario]) -> StepTimes:
        """Return the step times of each scenario."""
        parts = [self._replay(model, scenarios) for model in self._models]
        return StepTimes(
            span_s=self._by_step([span for span, _ in parts]),
            finish_s=self._by_step([finish for _, finish in parts]),
        )

    def _by_step(self, parts: list[FloatArray]) -> FloatArray:
        return np.concatenate(parts, axis=1)[:, self._order]

    def _replay(
        self, model: _Model, scenarios: Sequence[Scenario]
    ) -> tuple[FloatArray, FloatArray]:
        steps = len(model.pattern.steps)
        span, finish = np.empty((len(scenarios), steps)), np.empty((len(scenarios), steps))
        lanes = max(BLOCK_VALUES // model.graph.nodes, 1)
        some_steps = min(lanes, steps)
        some_scenarios = max(lanes // some_steps, 1)
        for i in range(0, len(scenarios), some_scenarios):
            for j in range(0, steps, some_steps):
                part = slice(i, i + some_scenarios), slice(j, j + some_steps)
                span[part], finish[part] = self._block(model, scenarios[part[0]], part[1])
        return span, finish

    def _block(
        self, model: _Model, scenarios: Sequence[Scenario], steps: slice
    ) -> tuple[FloatArray, FloatArray]:
        """Return the step times of a few scenarios and steps."""
        count, labels = model.graph.operations, model.labels
        length, delay = model.length_s[:, steps], model.delay_s[:, steps]
        ideal = self._ideal_s[labels.optype][:, None]
        times = np.zeros((model.graph.nodes, len(scenarios), length.shape[1]))
        for i, scenario in enumerate(scenarios):
            own = scenario.own_length(labels)[:, None]
            times[count : 2 * count, i] = np.where(own, length, ideal)
            if scenario.delayed is not None:
                times[:count, i] = np.where(scenario.delayed(labels)[:, None], delay, 0.0)
        replay_offsets(model.graph.waves, times.reshape(model.graph.nodes, -1))
        end = times[count : 2 * count]
        last = labels.optype == op.KNOWN.index(op.OPTIMIZER)
        finish = (end[last] if last.any() else end).max(axis=0)
        return end.max(axis=0) - times[:count].min(axis=0), finish


def _labels(job: Job, pattern: Pattern) -> Labels:
    replicas = len(job.dp_ranks)
    stage = np.repeat([own.stage for own in pattern.operations], replicas)
    dp_rank = np.tile(job.dp_ranks, len(pattern.operations))
    places = zip(dp_rank.tolist(), stage.tolist(), strict=True)
    optype = [op.KNOWN.index(own.optype) for own in pattern.operations]
    return Labels(
        optype=np.repeat(optype, replicas),
        seq=np.repeat([own.seq for own in pattern.operations], replicas),
        stage=stage,
        dp_rank=dp_rank,
        rank=np.array([job.rank[place] for place in places]),
    )


def _ideal_lengths(models: Sequence[_Model]) -> FloatArray:
    """Return the ideal length of each type, 0 for one that does not occur.

    The mean over all workers and steps for work, the median for communication.
    """
    ideal = np.zeros(len(op.KNOWN))
    for i, name in enumerate(op.KNOWN):
        lengths = np.concatenate(
            [model.length_s[model.labels.optype == i].ravel() for model in models]
        )
        if len(lengths):
            ideal[i] = np.median(lengths) if name in op.COMMUNICATION else lengths.mean()
    return ideal
