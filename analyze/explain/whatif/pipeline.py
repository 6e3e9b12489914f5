"""A job of a given schedule, simulated step after step from the passes of the recorded one.

The replicas of the pipeline are the lanes of one graph. They meet after their last pass,
where gradients are reduced. The microbatches of the run stay in their order, so that what
was slow for a while, or came with one microbatch on all stages, does so here.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from meshscope.probe.schema.terms import ScheduleKind

from ...formulas.schedules import Plan, make_plan, replay_lanes, schedule_graph
from ...tables.arrays import FloatArray, IntArray
from .recorded_passes import FORWARD, INPUT, WEIGHT

MOST_PASSES = 1 << 18
"""Most forward passes of a step on all stages: a plan of them takes some seconds."""
VALUES_AT_ONCE = 1 << 22
"""Most passes of a step times replicas, which bounds the memory to some 100 MB."""
VALUES_IN_ALL = 1 << 26
"""The same over all simulated steps, which bounds the time to some seconds."""
LEVEL_COST = 300
"""A level of the graph costs as much as so many passes (measured: 20 us to 70 ns)."""


class SimulatedSteps(NamedTuple):
    """How long steps take, ns."""

    mean_ns: float
    """Mean over ranks from the first begin to the last end, per step: as recorded steps are measured."""
    length_ns: FloatArray
    """From one step's last end to the next one's, ``(steps,)``."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Costs in ns; stages in model order, over all ranks and chunks."""

    schedule: ScheduleKind
    ranks: int
    chunks: int
    microbatches: int
    pass_ns: FloatArray
    """``(kind, stage, replica, position)``: the microbatches of all steps one after the other."""
    head_ns: FloatArray
    """``(pp, replica, step)``; the same for the tail."""
    tail_ns: FloatArray
    message_ns: FloatArray
    """``(2, pp, replica)``: from ranks before, and after."""
    replicas_meet: bool
    """Whether replicas wait for each other at the end of a step."""
    stages_meet: bool
    """Whether stages do."""
    skew_share: float
    """How much of the skew at the end of a step the first one begins with, 0..1."""

    @property
    def steps(self) -> int:
        """Return the number of recorded steps."""
        return int(self.head_ns.shape[2])

    def affordable_steps(self) -> int:
        """Return how many steps can be simulated in reasonable time, at most the recorded ones."""
        passes = 3 * self.ranks * self.chunks * self.microbatches
        replicas = min(self.pass_ns.shape[2], max(1, VALUES_AT_ONCE // passes))
        levels = 6 * self.chunks * self.microbatches
        cost = passes * replicas + levels * LEVEL_COST
        return int(np.clip(VALUES_IN_ALL // cost, 1, self.steps))

    def simulated(self, steps: int) -> SimulatedSteps:
        """Return the lengths of so many simulated steps.

        Raises:
            ConfigError: The schedule does not fit the sizes.
        """
        plan = make_plan(self.schedule, self.ranks, self.microbatches, self.chunks)
        whole = self._with_slowest(max(1, VALUES_AT_ONCE // len(plan)))
        simulation = _Simulation(whole, plan)
        begin = np.zeros((self.ranks, whole.pass_ns.shape[2]))
        if self.skew_share > 0:
            end = simulation.end_of(0, begin, steps)
            begin = self.skew_share * (end - end.mean())
        end, latest = begin, [begin.max()]
        for step in range(steps):
            end = simulation.end_of(step, end, steps)
            latest.append(end.max())
        return SimulatedSteps(float((end - begin).mean() / steps), np.diff(latest))

    def _with_slowest(self, most: int) -> Pipeline:
        """Return the pipeline with so many replicas, the slowest: the others wait for them."""
        if self.pass_ns.shape[2] <= most:
            return self
        slowest = self.pass_ns.sum(axis=(0, 3)).max(axis=0).argsort()[-most:]
        return replace(
            self,
            pass_ns=self.pass_ns[:, :, slowest],
            head_ns=self.head_ns[:, slowest],
            tail_ns=self.tail_ns[:, slowest],
            message_ns=self.message_ns[:, :, slowest],
        )


class _Simulation:
    """The graph of a step, and the part of it that is the same in every step."""

    def __init__(self, pipeline: Pipeline, plan: Plan) -> None:
        self._pipeline, self._plan = pipeline, plan
        self._schedule = schedule_graph(plan)
        later = (plan.rank[plan.needs] > plan.rank).astype(np.int64)
        self._message_ns = _whole(pipeline.message_ns[later, plan.rank])

    def end_of(self, step: int, begin: FloatArray, steps: int) -> FloatArray:
        """Return when each rank of each replica ends a step that it begins at the given time."""
        own, plan = self._pipeline, self._plan
        recorded = step * own.steps // steps
        position = positions(own.pass_ns.shape[3], own.steps, own.microbatches, step, steps)
        split = own.pass_ns
        by_kind = np.stack(
            [split[FORWARD], split[INPUT] + split[WEIGHT], split[INPUT], split[WEIGHT]]
        )
        lasts = by_kind[plan.kind, plan.stage, :, position[plan.microbatch]]
        weights = self._schedule.weights(
            _whole(lasts), self._message_ns, np.zeros((plan.ranks, 1), np.int64)
        )
        start = _whole(begin + own.head_ns[:, :, recorded])
        times = replay_lanes(self._schedule.graph, weights, start)
        done = times[2 * len(plan) :][: plan.ranks].astype(np.float64)
        if own.replicas_meet:
            done = np.broadcast_to(done.max(axis=1, keepdims=True), done.shape)
        if own.stages_meet:
            done = np.broadcast_to(done.max(axis=0, keepdims=True), done.shape)
        return done + own.tail_ns[:, :, recorded]


def positions(
    recorded: int, recorded_steps: int, microbatches: int, step: int, steps: int
) -> IntArray:
    """Return which recorded microbatches a simulated step consists of.

    Those of the run in their order, cut anew: evenly spread where there are more than are
    needed, from the start again where there are fewer, then with those of each recorded
    step in another order, so that chances do not repeat themselves.

    Args:
        recorded: Number of recorded microbatches, over all steps.
        recorded_steps: Number of recorded steps.
        microbatches: Microbatches of the simulated step.
        step: Its position.
        steps: Number of simulated steps.
    """
    wanted = step * microbatches + np.arange(microbatches)
    if steps * microbatches <= recorded:
        return np.asarray(wanted * recorded // (steps * microbatches))
    turn, place = np.divmod(wanted, recorded)
    own = recorded // recorded_steps
    order = np.arange(recorded)
    found = order[place]
    for number in np.unique(turn[turn > 0]):
        shuffled = np.random.default_rng(int(number)).permuted(order.reshape(-1, own), axis=1)
        found = np.where(turn == number, shuffled.ravel()[place], found)
    return np.asarray(found)


def _whole(values: FloatArray) -> IntArray:
    return np.asarray(np.rint(values), dtype=np.int64)
