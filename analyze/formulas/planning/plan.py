"""The plan of a job: memory by stage, bubble, FLOPs, volumes, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from meshscope.probe.schema.model import flops_per_token
from meshscope.probe.schema.model.counts import (
    conventions_of,
    idle_parameters,
    layer_flops,
    total_parameters,
)

from ...wording.limits import Limit
from ...wording.message import message
from ..schedules import PassCosts, fill_and_drain_frac, make_plan, replayed_bubble_frac
from ..schedules.schedule_records import FILL_AND_DRAIN, OVERLAPPING, SCHEDULES
from .communication import Volume, volumes
from .job import PlannedJob, Recompute
from .memory import StageMemory, stage_memory

RESERVED_OVER_ALLOCATED = (1.007, 1.040, 1.093)
"""Least, median and most of reserved / allocated over 19 settings x 8 ranks on B200."""
_UNIT_NS = 1_000
_MOST_REPLAYED = 64
"""Microbatches for each rank, above which an order without a closed form is not replayed whole."""


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a job that formulas say."""

    job: PlannedJob
    parameters: int
    active_parameters: int
    """Without the routed experts that a token does not pass."""
    flops_per_token: dict[str, float]
    """Model FLOPs of training on a token, by convention."""
    recompute_frac: float
    """What recomputation adds to the model FLOPs."""
    stages: tuple[StageMemory, ...]
    bubble_frac: float
    """Idle share of a step with equal stages and no communication."""
    volumes: tuple[Volume, ...]
    limits: tuple[Limit, ...]

    @property
    def most_bytes(self) -> float:
        """Return what the fullest stage is expected to reserve."""
        return reserved_bytes(max(one.allocated_bytes for one in self.stages))[1]


def reserved_bytes(allocated: float) -> tuple[float, float, float]:
    """Return the least, expected and most bytes that the allocator reserves for so many."""
    low, middle, high = (allocated * ratio for ratio in RESERVED_OVER_ALLOCATED)
    return low, middle, high


def make_job_plan(job: PlannedJob, stated: tuple[Limit, ...] = ()) -> JobPlan:
    """Return the plan of a job.

    Args:
        job: The job.
        stated: Limits that its settings have already.
    """
    model = job.model
    parameters = model.parameters or total_parameters(model)
    return JobPlan(
        job=job,
        parameters=parameters,
        active_parameters=parameters - idle_parameters(model),
        flops_per_token={name: flops_per_token(model, name) for name in conventions_of(model)},
        recompute_frac=recompute_frac(job),
        stages=stage_memory(job),
        bubble_frac=ideal_bubble_frac(job),
        volumes=tuple(volumes(job)),
        limits=(*stated, *_limits(job)),
    )


def recompute_frac(job: PlannedJob) -> float:
    """Return the FLOPs of recomputation over the model FLOPs (full attention).

    Full recomputation repeats the forward of every layer: a third of its FLOPs, 33 % but for the
    head. Selective repeats the forward of attention's core.
    """
    if job.recompute is Recompute.NONE:
        return 0.0
    model = job.model
    total = flops_per_token(model)
    if job.recompute is Recompute.FULL:
        layers = sum(layer_flops(model, layer) for layer in range(model.num_layers))
        return layers / 3 / total
    return (total - flops_per_token(model, "no_attention")) / 3 / total


def ideal_bubble_frac(job: PlannedJob) -> float:
    """Return the idle share with equal stages: (p - 1) / (m v + p - 1) for 1F1B and GPipe.

    Other orders are replayed, one step by itself, with forward = both halves of the backward. A schedule
    that fills its idle time from the steps beside it, as ZB-V does, has less in a long run.
    """
    p, m, v = job.layout.pp, job.microbatches, job.layout.vpp
    kind = job.schedule
    if p == 1:
        return 0.0
    if kind in FILL_AND_DRAIN and (m % p == 0 or not SCHEDULES[kind].in_rounds):
        return fill_and_drain_frac(p, m, v)
    short = min(m, max(_MOST_REPLAYED, 4 * p))
    cost = np.full(p * v, _UNIT_NS, np.int64)
    costs = PassCosts(forward_ns=cost, backward_input_ns=cost, backward_weight_ns=cost)
    found = replayed_bubble_frac(make_plan(kind, p, short, v), costs)
    # Idle time does not grow with further microbatches; the work does.
    idle = found / (1.0 - found) * short
    return idle / (idle + m)


def _limits(job: PlannedJob) -> Iterator[Limit]:
    yield message("scope.not_modelled")
    if job.model.experts:
        yield message("assumed.even_experts")
    if job.model.mtp_layers:
        yield message("scope.multi_token_prediction")
    if job.model.window:
        yield message("scope.sliding_windows")
    if job.zero == 3 and job.layout.pp > 1:
        yield message("assumed.weights_gathered")
    if job.schedule in OVERLAPPING:
        yield message("assumed.pairs_in_sequence")
