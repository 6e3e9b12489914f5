"""What pipeline bubble to expect, for the schedule of a run and for the others."""

from __future__ import annotations

from dataclasses import dataclass

from meshscope.analyze.formulas.planning.pipeline_replay import StepCost, held_peak, replay
from meshscope.analyze.formulas.schedules.schedule_records import MANY, SCHEDULES, rank_orders
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

from ..config.config import TrainerConfig
from ..config.schedule_config import ScheduleConfig

__all__ = ["BubblePlan", "bubble_plans", "expected_cost", "stage_costs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BubblePlan:
    """One schedule with equal stages, at the ranks and microbatches of a run."""

    kind: ScheduleKind
    """The schedule."""
    chunks: int
    """Stages per rank."""
    cost: StepCost | None
    """Replayed; None where the schedule does not fit."""
    microbatches_held: float
    """Peak of activations on the fullest rank, in microbatches through all its blocks."""
    refusal: str
    """Why the schedule does not fit; empty if it does."""


def bubble_plans(config: TrainerConfig) -> tuple[BubblePlan, ...]:
    """Return what each schedule would make of the run's ranks and microbatches."""
    return tuple(_plan(config, kind) for kind in SCHEDULES)


def stage_costs(config: TrainerConfig) -> tuple[float, ...]:
    """Return what a forward through each stage of the run costs, in blocks.

    Embedding and head cost what their weights say, which is nothing by default.
    """
    costs = [float(count) for count in config.layers_per_stage]
    costs[0] += config.schedule.embedding_weight
    costs[-1] += config.schedule.head_weight
    return tuple(costs)


def expected_cost(config: TrainerConfig) -> StepCost:
    """Return the replayed step of the run with its own split of the blocks, in blocks."""
    layout, schedule = config.layout, config.schedule
    orders = rank_orders(schedule.kind, layout.pp, schedule.microbatches, layout.vpp)
    return replay(orders, stage_costs(config).__getitem__)


def _plan(config: TrainerConfig, kind: ScheduleKind) -> BubblePlan:
    ranks, microbatches = config.layout.pp, config.schedule.microbatches
    chunks = _chunks(config, kind)
    try:
        candidate = ScheduleConfig(kind=kind.value, microbatches=microbatches)
        candidate.check_mesh(ParallelLayout(pp=ranks, vpp=chunks))
    except ConfigError as error:
        return BubblePlan(
            kind=kind, chunks=chunks, cost=None, microbatches_held=0.0, refusal=str(error)
        )
    orders = rank_orders(kind, ranks, microbatches, chunks)
    return BubblePlan(
        kind=kind,
        chunks=chunks,
        cost=replay(orders, lambda _stage: 1 / chunks),
        microbatches_held=max(held_peak(order, lambda _stage: 1 / chunks) for order in orders),
        refusal="",
    )


def _chunks(config: TrainerConfig, kind: ScheduleKind) -> int:
    """Return the chunks a schedule has: those of the run where it interleaves, else 2 or 1."""
    own = SCHEDULES[kind].chunks
    return max(2, config.layout.vpp) if own == MANY else own
