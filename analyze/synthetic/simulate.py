"""The times of a synthetic job, step after step, by the replay graph of a step.

Inside a step pipelines do not meet, so they are lanes of one graph. After its last
pass a rank reduces gradients with its dp group, then along cp, runs the optimizer and
saves. Buckets of an overlapped reduction are issued at even distances in the last
backward pass of a rank, run one after the other, and are waited for at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..formulas.schedules import replay_lanes
from ..tables.arrays import IntArray
from .durations import NEVER_NS, StepDurations, step_durations
from .job import SyntheticJob
from .mesh import Mesh, make_mesh
from .program import StepProgram, make_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Reduction of the gradients; ``(buckets, pp, member, lane)`` each."""

    issue: IntArray
    done: IntArray
    wait: IntArray
    """When the rank began to wait for the bucket."""
    resume: IntArray
    """When it went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """When everything in one step happens, ns since the start of the job."""

    step: int
    durations: StepDurations
    begin: IntArray
    """End of the step before, ``(pp, member, lane)`` as all but nodes and gradients."""
    nodes: IntArray
    """``(nodes, lanes)`` of the step's graph."""
    gradients: Gradients | None
    """None where there is one replica."""
    reduced: IntArray
    """Gradients are there; the reduction along cp begins where ``cp`` is above 1."""
    optimizer: IntArray
    """The optimizer begins."""
    checkpoint: IntArray
    """Saving begins."""
    end: IntArray

    def at(self, nodes: IntArray) -> IntArray:
        """Return the times of ``(operation, member)`` nodes, ``(operation, member, lane)``."""
        return np.asarray(self.nodes[nodes])

    @property
    def is_stuck(self) -> bool:
        """Return whether something in this step never happens."""
        return bool(is_never(self.end).any())


@dataclass(frozen=True, slots=True)
class Simulation:
    """A job with its mesh and the program of its steps."""

    job: SyntheticJob
    mesh: Mesh
    program: StepProgram

    def steps(
        self, first: int = 0, begin: IntArray | None = None, end: int | None = None
    ) -> Iterator[StepTimes]:
        """Yield the steps in order; the one in which a rank hangs is the last.

        Args:
            first: Step to begin with.
            begin: When the ranks begin it, ``(pp, member, lane)``; 0 if not given.
            end: Step to end before; all that follow if not given.
        """
        if begin is None:
            begin = np.zeros(self.mesh.rank.shape, np.int64)
        for step in range(first, self.job.steps if end is None else end):
            times = self._step(step, begin)
            yield times
            if times.is_stuck:
                return
            begin = times.end

    def _step(self, step: int, begin: IntArray) -> StepTimes:
        durations = step_durations(self.job, self.mesh, self.program, step)
        start = (begin + durations.data).reshape(-1, self.mesh.lanes)
        nodes = replay_lanes(self.program.graph, durations.weights, start)
        last = self.program.last[self.program.plan.is_last]
        done = nodes[self.program.node[last]]
        gradients = self._gradients(durations, nodes, done)
        reduced = done if gradients is None else gradients.resume[-1]
        optimizer = self._along_cp(reduced, durations)
        checkpoint = optimizer + durations.optimizer
        return StepTimes(
            step=step,
            durations=durations,
            begin=begin,
            nodes=nodes,
            gradients=gradients,
            reduced=reduced,
            optimizer=optimizer,
            checkpoint=checkpoint,
            end=checkpoint + durations.checkpoint,
        )

    def _gradients(
        self, durations: StepDurations, nodes: IntArray, done: IntArray
    ) -> Gradients | None:
        if self.job.layout.dp == 1:
            return None
        free, complete = done, np.zeros_like(done)
        columns: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
        for bucket, operation in enumerate(bucket_operations(self.job, self.program)):
            issue = nodes[self.program.node[operation]] if self.job.overlap_dp else free
            together = self._latest(issue, axes=(2, 4))
            complete = np.maximum(together, complete) + durations.gradient_wire[bucket]
            resume = np.maximum(free, complete)
            columns.append((issue, complete, free, resume))
            free = resume
        issue, complete, wait, resume = (np.stack(column) for column in zip(*columns, strict=True))
        return Gradients(issue=issue, done=complete, wait=wait, resume=resume)

    def _along_cp(self, reduced: IntArray, durations: StepDurations) -> IntArray:
        if self.job.layout.cp == 1:
            return reduced
        return self._latest(reduced, axes=(1,)) + durations.gradient_cp_wire

    def _latest(self, times: IntArray, *, axes: tuple[int, ...]) -> IntArray:
        """Return the maximum over some of the axes (pp, cp, ep, tp, lane) for every rank."""
        layout = self.job.layout
        shape = (layout.pp, layout.cp, layout.ep, layout.tp, self.mesh.lanes)
        shaped = times.reshape(shape)
        latest = np.broadcast_to(shaped.max(axis=axes, keepdims=True), shape)
        return latest.reshape(times.shape)


def make_simulation(job: SyntheticJob) -> Simulation:
    """Return the simulation of a job.

    Raises:
        ConfigError: The schedule does not fit the layout.
    """
    mesh = make_mesh(job.layout)
    return Simulation(job, mesh, make_program(job, mesh))


def bucket_operations(job: SyntheticJob, program: StepProgram) -> IntArray:
    """Return after which operation each bucket is complete, ``(buckets, pp)``.

    The last pass of a rank leaves the last gradients; its segments are shared out
    among the buckets.
    """
    rows = np.flatnonzero(program.plan.is_last)
    length = (program.last - program.first + 1)[rows]
    segment = -(-(np.arange(job.dp_buckets) + 1) * job.segments // job.dp_buckets)
    per_segment = length // job.segments
    return np.asarray(program.first[rows] - 1 + segment[:, None] * per_segment)


def is_never(times: IntArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which times are never reached."""
    return np.asarray(times >= NEVER_NS)
