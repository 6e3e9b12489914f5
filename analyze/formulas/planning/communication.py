"""What one rank sends and receives in a step, by axis and kind of collective.

Sizes are those of the whole buffer that an operation works on, as torch's collectives take it; a
ring moves (n - 1) / n of it. Rows are of the pipeline rank that has most of the kind. With T tokens
of a microbatch on a rank, width h, and t tensor-parallel ranks (Korthikanti et al. 2022, arXiv
2205.05198, sections 4.2 and 4.3)::

    tp   a dense layer gathers or scatters 2 T h bytes 2 + 2 times forward and 4 + 2 times backward
         with sequence parallelism, else it reduces them 2 times forward and 2 times backward
    pp   2 T h / t forward and as much backward for each border of chunks
    dp   gradients once, and with ZeRO-1 the weights; ZeRO-3 gathers weights in every pass
    ep   rows of chosen experts there and back, forward and backward: 4 x 2 T h k
    cp   keys and values of the other ranks: (c - 1) forward, twice that backward
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshscope.probe.schema.model.counts import has_experts
from meshscope.probe.schema.terms import Axis

from .job import PlannedJob, Recompute
from .moments import hidden_bytes, vocabulary_gradient_bytes
from .states import layers_of_stage, rank_parameters, stages_of_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """All operations of one kind on one axis in a step of one rank."""

    axis: Axis
    kind: str
    count_per_step: int
    bytes_per_step: float
    formula: str
    element_bytes: int
    """Of one element, as the sizes assume it."""


def volumes(job: PlannedJob) -> list[Volume]:
    """Return the operations by axis and kind, of the pipeline rank that has most bytes of each."""
    found: dict[tuple[Axis, str, str], Volume] = {}
    for rank in range(job.layout.pp):
        for one in volumes_of_rank(job, rank):
            key = (one.axis, one.kind, one.formula)
            if one.count_per_step and (
                key not in found or one.bytes_per_step > found[key].bytes_per_step
            ):
                found[key] = one
    return list(found.values())


def volumes_of_rank(job: PlannedJob, rank: int) -> Iterator[Volume]:
    """Yield the operations of one pipeline rank by axis and kind."""
    stages = stages_of_rank(job, rank)
    layers = [layer for stage in stages for layer in layers_of_stage(job, stage)]
    yield from _tensor(job, layers, stages)
    yield from _pipeline(job, stages)
    yield from _data(job, rank)
    yield from _experts(job, layers)
    yield from _context(job, layers)


def _tensor(job: PlannedJob, layers: list[int], stages: tuple[int, ...]) -> Iterator[Volume]:
    if job.layout.tp == 1:
        return
    again = job.recompute is Recompute.FULL
    # A layer with experts has them for attention, and for shared experts where it has some.
    blocks = sum(
        2 if not has_experts(job.model, layer) or job.model.shared_ffn_size else 1
        for layer in layers
    )
    first, last = 0 in stages, job.stages - 1 in stages
    whole, m = hidden_bytes(job), job.microbatches
    if job.shared_by > 1:
        gathers = m * (blocks * (3 + again) + first + 2 * last)
        scatters = m * (blocks * (2 + again) + first + last)
        text = "2 b s h"
        yield _volume(Axis.TP, "all_gather", gathers, gathers * whole, text)
        yield _volume(Axis.TP, "reduce_scatter", scatters, scatters * whole, text)
        return
    sums = m * (blocks * (2 + again) + first + last)
    yield _volume(Axis.TP, "all_reduce", sums, sums * whole, "2 b s h")


def _pipeline(job: PlannedJob, stages: tuple[int, ...]) -> Iterator[Volume]:
    pp, last = job.layout.pp, job.stages - 1
    if pp == 1:
        return
    # Forward to the next stage and backward to the one before, unless that is on the same rank.
    own = set(stages)
    sends = sum(
        other not in own
        for stage in stages
        for other in (stage - 1, stage + 1)
        if 0 <= other <= last
    )
    count = sends * job.microbatches
    size = hidden_bytes(job) / job.shared_by
    yield _volume(Axis.PP, "send", count, count * size, f"2 b s h / {job.shared_by}")
    if job.model.tied and (0 in own) != (last in own):
        size = vocabulary_gradient_bytes(job) / job.weight_bytes * job.gradient_bytes
        text, each = "gradient of the tied embedding", job.gradient_bytes
        yield _volume(Axis.PP, "all_reduce", 1, size, text, each)


def _data(job: PlannedJob, rank: int) -> Iterator[Volume]:
    found, m = rank_parameters(job, rank), job.microbatches
    for name, count, replicas in (
        ("dense", found.dense, job.replicas),
        ("experts", found.experts, job.expert_replicas),
    ):
        if replicas == 1 or not count:
            continue
        gradients, weights = float(job.gradient_bytes * count), float(job.weight_bytes * count)
        text = f"{job.gradient_bytes} bytes x {name} parameters"
        if job.zero == 0:
            yield _volume(Axis.DP, "all_reduce", 1, gradients, text, job.gradient_bytes)
            continue
        passes = m if job.zero >= 2 else 1
        each, size = job.gradient_bytes, passes * gradients
        yield _volume(Axis.DP, "reduce_scatter", passes, size, text, each)
        passes = 2 * m if job.zero == 3 else 1
        text = f"{job.weight_bytes} bytes x {name} parameters"
        yield _volume(Axis.DP, "all_gather", passes, passes * weights, text, job.weight_bytes)


def _experts(job: PlannedJob, layers: list[int]) -> Iterator[Volume]:
    count = sum(has_experts(job.model, layer) for layer in layers)
    if not count or job.layout.ep == 1:
        return
    passes = 6 if job.recompute is Recompute.FULL else 4
    operations = passes * count * job.microbatches
    size = hidden_bytes(job) * job.model.experts_per_token / job.shared_by
    text = f"2 b s h k / {job.shared_by}, even load"
    yield _volume(Axis.EP, "all_to_all", operations, operations * size, text)


def _context(job: PlannedJob, layers: list[int]) -> Iterator[Volume]:
    model, cp = job.model, job.layout.cp
    if cp == 1:
        return
    keys = max(1.0, model.kv_heads / job.layout.tp) * (model.head_dim + model.v_head_dim)
    sends = 3 * (cp - 1) * len(layers) * job.microbatches
    yield _volume(Axis.CP, "send", sends, sends * 2.0 * job.tokens * keys, "2 b s (k + v)")


def _volume(
    axis: Axis, kind: str, count: int, size: float, formula: str, element_bytes: int = 2
) -> Volume:
    return Volume(
        axis=axis,
        kind=kind,
        count_per_step=count,
        bytes_per_step=size,
        formula=formula,
        element_bytes=element_bytes,
    )
