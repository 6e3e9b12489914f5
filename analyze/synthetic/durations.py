"""How long everything in one step of a synthetic job takes, with its faults in force.

Random numbers are drawn per purpose and step from the seed of the job alone, so that
a job without one of its faults has the same jitter in every other place: the two are
a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ..formulas.schedules import PASS_KINDS
from ..tables.arrays import FloatArray, IntArray
from .faults import Fault, FaultKind
from .job import SyntheticJob
from .mesh import Mesh
from .program import COLLECTIVE, COMPUTE, StepProgram

NEVER_NS = 2**58
"""Duration of what never ends; sums of a few of them still fit 64 bits."""
FORWARD = 0
"""Position of a forward pass in ``PASS_KINDS``."""


class Purpose(IntEnum):
    """What random numbers are drawn for."""

    WORK = 0
    WIRE = 1
    SEQUENCE = 2
    PAUSE = 3
    LOSS = 4
    GRADIENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDurations:
    """Durations of one step, ns; the last axes are (member, lane)."""

    work: IntArray
    """Computing of each pass."""
    pause: IntArray | None
    """Collection of garbage at the begin of each pass; None where there is none."""
    weights: IntArray
    """Edges of the step's graph, ``(edges, lanes)``."""
    data: IntArray
    """Loading at the begin of the step, ``(pp, member, lane)`` as all below."""
    optimizer: IntArray
    checkpoint: IntArray
    gradient_wire: IntArray
    """``(buckets, pp, member, lane)``; equal in a dp group."""
    gradient_cp_wire: IntArray


def step_durations(job: SyntheticJob, mesh: Mesh, program: StepProgram, step: int) -> StepDurations:
    """Return the durations of one step."""
    slow = _slowdown(job, mesh, step, FaultKind.SLOW_RANK)
    clock = _slowdown(job, mesh, step, FaultKind.CLOCK_DROP)
    work = _work(job, mesh, program, step, slow * clock)
    pause = _pauses(job, mesh, program, step)
    shape = mesh.rank.shape
    costs, buckets = job.costs, job.dp_buckets
    stalls = {
        kind: sum(
            (
                mesh.selected(f, job.ranks_per_host) * f.extra_ns
                for f in job.of_kind(kind, step=step)
            ),
            np.zeros(shape, np.int64),
        )
        for kind in (FaultKind.DATA_STALL, FaultKind.CHECKPOINT)
    }
    gradients = _gradient_wire(job, mesh, step)
    return StepDurations(
        work=work,
        pause=pause,
        weights=_weights(job, mesh, program, step, work, pause),
        data=costs.data_load_ns + stalls[FaultKind.DATA_STALL],
        optimizer=_rounded(costs.optimizer_ns * slow),
        checkpoint=stalls[FaultKind.CHECKPOINT],
        gradient_wire=gradients[:buckets],
        gradient_cp_wire=gradients[buckets],
    )


def draws(
    job: SyntheticJob, purpose: Purpose, step: int, fault: Fault | None = None
) -> np.random.Generator:
    """Return the source of random numbers for one purpose in one step, of one fault if given."""
    own = 0 if fault is None else crc32(fault.text().encode())
    return np.random.default_rng([job.seed, purpose, step, own])


def variation(random: np.random.Generator, cv: float, shape: tuple[int, ...]) -> FloatArray:
    """Return log-normal factors of mean 1 and the given coefficient of variation."""
    if cv == 0:
        return np.ones((1,) * len(shape))
    sigma = float(np.sqrt(np.log1p(cv**2)))
    return np.asarray(np.exp(sigma * random.standard_normal(shape) - sigma**2 / 2))


def _rounded(value: FloatArray) -> IntArray:
    return np.rint(value).astype(np.int64)


def _slowdown(job: SyntheticJob, mesh: Mesh, step: int, kind: FaultKind) -> FloatArray:
    slow = np.ones(mesh.rank.shape)
    for fault in job.of_kind(kind, step=step):
        slow[mesh.selected(fault, job.ranks_per_host)] *= fault.factor or 1.0
    return slow


def _base_ns(job: SyntheticJob, program: StepProgram, step: int) -> FloatArray:
    """Return the undisturbed computing of every pass, with what its stage adds."""
    plan, costs = program.plan, job.costs
    layers = np.array(job.layers or (2,) * job.stages)[plan.stage]
    halves = (costs.layer_backward_input_ns, costs.layer_backward_weight_ns)
    per_layer = np.array([costs.layer_forward_ns, sum(halves), *halves])
    times = np.where(plan.kind == PASS_KINDS.index("backward"), 2, 1)
    base = layers * per_layer[plan.kind].astype(np.float64)
    first, last = plan.stage == 0, plan.stage == job.stages - 1
    for at, kind, own in (
        (first, FaultKind.HEAVY_EMBEDDING, costs.embedding_ns),
        (last, FaultKind.HEAVY_HEAD, costs.head_ns),
    ):
        extra = own + sum(fault.extra_ns for fault in job.of_kind(kind, step=step))
        base += np.where(at, extra * times, 0)
    for fault in job.of_kind(FaultKind.SLOW_STAGE, step=step):
        base[plan.stage == fault.stage] *= fault.factor or 1.0
    return base


def _work(
    job: SyntheticJob, mesh: Mesh, program: StepProgram, step: int, slow: FloatArray
) -> IntArray:
    plan = program.plan
    work = _base_ns(job, program, step)[:, None, None] * slow[plan.rank]
    shape = (len(plan), mesh.members, mesh.lanes)
    work = work * variation(draws(job, Purpose.WORK, step), job.jitter_cv, shape)
    work *= microbatch_work(job, step)[plan.microbatch[:, None, None], mesh.at["dp"][plan.rank]]
    whole = _rounded(work)
    is_forward = (plan.kind == FORWARD)[:, None, None]
    for fault in job.of_kind(FaultKind.BLOCKED_RANK, step=step):
        hit = mesh.selected(fault, job.ranks_per_host)[plan.rank] & is_forward
        whole += hit * fault.extra_ns
    for fault in job.of_kind(FaultKind.HANG):
        if step == (fault.first_step or 0):
            stopped = _first_passes(program, fault.microbatch or 0)[:, None, None]
            whole[stopped & (mesh.rank[plan.rank] == fault.rank)] = NEVER_NS
    return whole


def microbatch_work(job: SyntheticJob, step: int) -> FloatArray:
    """Return the work ``(microbatch, dp)`` of each microbatch of a step, 1 being usual."""
    size = (job.microbatches, job.layout.dp)
    work = np.ones(size)
    for fault in job.of_kind(FaultKind.SEQUENCE, step=step):
        random = draws(job, Purpose.SEQUENCE, step, fault)
        length = np.broadcast_to(variation(random, fault.cv or 0.0, size), size)
        # The data of a step stays the same; it is only packed unevenly.
        work *= length / length.mean()
    return work


def _first_passes(program: StepProgram, microbatch: int) -> npt.NDArray[np.bool_]:
    """Return the forward passes of a microbatch through the first chunk of each rank."""
    plan = program.plan
    found = (plan.kind == FORWARD) & (plan.microbatch == microbatch) & (plan.chunk == 0)
    return np.asarray(found)


def _pauses(job: SyntheticJob, mesh: Mesh, program: StepProgram, step: int) -> IntArray | None:
    """Return the pauses of collections, which a rank takes at the begin of a forward pass."""
    plan, pause = program.plan, None
    for fault in job.of_kind(FaultKind.GC_PAUSE, step=step):
        hit = mesh.selected(fault, job.ranks_per_host)[plan.rank]
        if fault.chance is None:
            hit = hit & _first_passes(program, fault.microbatch or 0)[:, None, None]
        else:
            own = draws(job, Purpose.PAUSE, step, fault).random(hit.shape) < fault.chance
            forward = plan.kind == FORWARD
            if fault.microbatch is not None:
                forward = forward & (plan.microbatch == fault.microbatch)
            hit = hit & own & forward[:, None, None]
        pause = hit * fault.extra_ns + (0 if pause is None else pause)
    return pause


def _weights(
    job: SyntheticJob,
    mesh: Mesh,
    program: StepProgram,
    step: int,
    work: IntArray,
    pause: IntArray | None,
) -> IntArray:
    """Return the weights of all edges: pieces of work, the first with the pause, and wires."""
    shape = (len(program.kind), mesh.members, mesh.lanes)
    weight = np.empty(shape, np.int64)
    pieces = np.flatnonzero(program.kind == COMPUTE)
    weight[pieces] = (work // job.segments)[program.row[pieces]]
    stride = 1 + len(program.axes)
    weight[program.last - stride + 1] += work % job.segments
    if pause is not None:
        weight[program.last - stride * job.segments + 1] += pause
    random = draws(job, Purpose.WIRE, step)
    for at, axis in enumerate(program.axes):
        weight[program.kind == COLLECTIVE + at] = _axis_wire(job, mesh, program, axis, step, random)
    messages = _message_wire(job, mesh, program, step, random)
    weight[program.receives] = messages
    return np.concatenate([weight, messages]).reshape(-1, mesh.lanes)


def _axis_wire(
    job: SyntheticJob,
    mesh: Mesh,
    program: StepProgram,
    axis: str,
    step: int,
    random: np.random.Generator,
) -> IntArray:
    """Return the wire time of every collective of an inner axis, equal in a group."""
    operations = program.kind == COLLECTIVE + program.axes.index(axis)
    group = mesh.member_group[axis]
    shape = (int(operations.sum()), int(group.max()) + 1, mesh.lanes)
    varied = np.broadcast_to(variation(random, job.wire_cv, shape), shape)[:, group]
    wire = _link_ns(job, mesh, axis, step, getattr(job.costs, f"{axis}_ns"))
    return _rounded(wire[program.rank[operations]] * varied)


def _link_ns(job: SyntheticJob, mesh: Mesh, axis: str, step: int, base_ns: float) -> FloatArray:
    """Return the wire time along an axis for every rank, with slow groups."""
    wire = np.full(mesh.rank.shape, float(base_ns))
    group = mesh.group_of(axis)
    for fault in job.of_kind(FaultKind.SLOW_LINK, step=step):
        if fault.axis == axis:
            held = group == group[mesh.rank == fault.rank] if fault.rank is not None else ...
            wire[held] = wire[held] * (fault.factor or 1.0) + fault.extra_ns
    return wire


def _message_wire(
    job: SyntheticJob, mesh: Mesh, program: StepProgram, step: int, random: np.random.Generator
) -> IntArray:
    """Return the wire time of every message, ``(receives, members, lanes)``."""
    receives = program.receives
    shape = (len(receives), mesh.members, mesh.lanes)
    wire = np.full(shape, float(job.costs.pp_ns))
    target = mesh.rank[program.rank[receives]]
    source = mesh.rank[program.rank[program.needed]]
    for fault in job.of_kind(FaultKind.SLOW_LINK, step=step):
        if fault.axis == "pp":
            held = _on_link(fault, source, target)
            wire[held] = wire[held] * (fault.factor or 1.0) + fault.extra_ns
    return _rounded(wire * variation(random, job.wire_cv, shape))


def _on_link(fault: Fault, source: IntArray, target: IntArray) -> npt.NDArray[np.bool_]:
    """Return which messages run over the link of a fault, in either direction."""
    held = np.ones(source.shape, dtype=bool)
    for end in (fault.rank, fault.peer):
        if end is not None:
            held &= (source == end) | (target == end)
    return held


def _gradient_wire(job: SyntheticJob, mesh: Mesh, step: int) -> IntArray:
    """Return the wire of each gradient bucket, then that of the reduction along cp."""
    layout, buckets = job.layout, job.dp_buckets
    random = draws(job, Purpose.GRADIENT, step)
    axes = (layout.pp, layout.cp, layout.ep, layout.tp, mesh.lanes)
    along_dp = (buckets, layout.pp, layout.cp, 1, layout.tp, 1)
    along_cp = (1, layout.pp, 1, layout.ep, layout.tp, mesh.lanes)
    wires = []
    for axis, shape, base in (
        ("dp", along_dp, job.costs.dp_ns / buckets),
        ("cp", along_cp, job.costs.cp_ns),
    ):
        varied = np.broadcast_to(variation(random, job.wire_cv, shape), (shape[0], *axes))
        wire = _link_ns(job, mesh, axis, step, base)
        wires.append(wire * varied.reshape(shape[0], *mesh.rank.shape))
    return _rounded(np.concatenate(wires))
