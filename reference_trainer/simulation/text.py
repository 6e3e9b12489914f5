"""What the simulation of a rank found, as text, beside what the formulas say."""

from __future__ import annotations

from collections.abc import Sequence

from meshscope.analyze.formulas.schedules.passes import Pass
from meshscope.analyze.formulas.schedules.schedule_records import SCHEDULES, rank_orders
from meshscope.probe.schema.layout import MESH_AXES
from meshscope.probe.schema.terms import ScheduleKind

from ..config.config import TrainerConfig
from ..planning.bubble_plan import expected_cost
from ..planning.memory_plan import RankMemory, memory_plan
from ..planning.run_memory import BEYOND, activation_terms
from ..text_table import gigabytes, table
from .pass_watch import Holding
from .simulation import SimulatedRank

_SHOWN_PASSES = 12


def simulation_text(config: TrainerConfig, found: SimulatedRank) -> str:
    """Return everything that was found, in sections.

    Args:
        config: The run that was asked for.
        found: The simulation of one of its ranks.
    """
    plan = memory_plan(config)[found.position]
    sections = (
        _head_lines(config, found, plan),
        _order_lines(config, found),
        _collective_lines(found),
        _phase_lines(found),
        _account_lines(config, found, plan),
        _activation_lines(config, found, plan),
    )
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _head_lines(config: TrainerConfig, found: SimulatedRank, plan: RankMemory) -> list[str]:
    layout = config.layout
    place = layout.coordinates(found.rank)
    where = ", ".join(f"{axis} {place[axis]}" for axis in MESH_AXES)
    stages = " and ".join(map(str, plan.stages))
    return [
        f"rank      {found.rank:,} of {layout.world_size:,}: {where}; stage {stages}, "
        f"{found.parameters:,} parameters on this GPU",
        f"          the {layout.world_size // layout.pp:,} ranks with pp {found.position} are alike",
    ]


def _order_lines(config: TrainerConfig, found: SimulatedRank) -> list[str]:
    """Return the passes of the rank, and what they cost by replay of all ranks."""
    layout, schedule = config.layout, config.schedule
    whole = rank_orders(schedule.kind, layout.pp, schedule.microbatches, layout.vpp)
    order = whole[found.position]
    lines = [f"order     {schedule.kind}, {len(order)} passes: {_shown(order)}"]
    if layout.pp > 1:
        lines.append(
            f"          expected bubble {expected_cost(config).idle_over_ideal:.2%} of ideal time; "
            f"equal stages: {SCHEDULES[ScheduleKind(schedule.kind)].bubble}"
        )
    if found.microbatches < schedule.microbatches:
        lines.append(
            f"          ran {found.microbatches} of {schedule.microbatches} microbatches, since the "
            "order never holds more than it does in these"
        )
    return lines


def _shown(order: Sequence[Pass]) -> str:
    """Return the passes, the middle of long orders left out: 0F1 is stage 0, forward, microbatch 1."""
    if len(order) <= 2 * _SHOWN_PASSES:
        return " ".join(map(str, order))
    ends = (order[:_SHOWN_PASSES], order[-_SHOWN_PASSES:])
    return " … ".join(" ".join(map(str, end)) for end in ends)


def _collective_lines(found: SimulatedRank) -> list[str]:
    """Return one row per kind of collective and axis."""
    rows = [["collectives", "axis", "number", "GB"]]
    rows += [
        [name, axis.value, str(count), gigabytes(found.payload_bytes[name, axis])]
        for (name, axis), count in sorted(found.collectives.items())
    ]
    if len(rows) == 1:
        return ["collectives none"]
    return [*table(rows), f"In a step of {found.microbatches} microbatches; sends are not in it."]


def _phase_lines(found: SimulatedRank) -> list[str]:
    """Return the highest moment of each phase, taken apart."""
    used = [kind for kind in Holding if any(phase.holdings.get(kind) for phase in found.phases)]
    rows = [["phase", *(kind.value for kind in used), "all"]]
    for phase in found.phases:
        sizes = [gigabytes(phase.holdings.get(kind, 0)) for kind in used]
        rows.append([phase.name, *sizes, gigabytes(phase.peak_bytes)])
    return [
        "memory    GB (10^9 bytes) at the highest moment of each phase",
        *table(rows),
        "Messages: torch's pipeline runtime keeps a receive buffer per microbatch and direction, and",
        "what it sends until the step is over. The update is that of a fused optimizer; torch's",
        "foreach form holds a copy of the masters on top.",
    ]


def _account_lines(config: TrainerConfig, found: SimulatedRank, plan: RankMemory) -> list[str]:
    """Return what is kept from step to step by simulation and by formula."""
    held, zero = found.held, config.data_parallel.zero
    adam = plan.adam_zero1_bytes if zero else plan.adam_bytes
    pairs = (
        ("weights", held.weights_bytes, plan.weight_bytes, _why_weights(config)),
        ("gradients", held.gradients_bytes, plan.gradient_bytes, _why_gradients(config)),
        ("optimizer", held.masters_bytes + held.optimizer_bytes, adam, _why_optimizer(config)),
    )
    rows = [["between steps", "simulated", "formula", "because"]]
    rows += [
        [name, gigabytes(real), gigabytes(planned), "; ".join(why) or "-"]
        for name, real, planned, why in pairs
    ]
    return [
        *table(rows),
        "Formula: bf16 weights and gradients, Adam in fp32 with masters: 2 + 2 + 12 bytes per "
        "parameter.",
    ]


def _why_weights(config: TrainerConfig) -> list[str]:
    reasons = []
    if config.memory.precision == "fp32":
        reasons.append("fp32: 4 bytes each")
    if config.data_parallel.zero == 3:
        reasons.append(f"1 / {_shards(config)} of them: whole only within a step")
    return reasons


def _why_gradients(config: TrainerConfig) -> list[str]:
    zero, shards = config.data_parallel.zero, _shards(config)
    if zero == 3:
        return ["made in the backward, gone after the update"]
    reasons = []
    if config.memory.gradients == "fp32":
        reasons.append("added up in fp32: 4 bytes each")
    if zero == 2:
        reasons.append(f"only 1 / {shards} of the sums stays")
    return reasons


def _why_optimizer(config: TrainerConfig) -> list[str]:
    if config.train.optimizer == "sgd":
        return ["SGD has no state"]
    reasons = []
    if config.memory.precision == "fp32" or config.data_parallel.zero == 3:
        reasons.append("the weights are the masters: 8 bytes each")
    if config.data_parallel.zero and config.layout.ep == 1:
        reasons.append(f"both: 1 / {_shards(config)} per GPU")
    return reasons


def _shards(config: TrainerConfig) -> int:
    """Return the ranks that share one copy of what is sharded."""
    return config.data_parallel.shard_ranks or config.layout.dp * config.layout.cp


def _activation_lines(config: TrainerConfig, found: SimulatedRank, plan: RankMemory) -> list[str]:
    """Return what forwards leave behind, by simulation and by formula."""
    by_origin = {
        (origin.operator, origin.shape): size_bytes
        for origin, (_, size_bytes) in found.activations.items()
    }
    terms = activation_terms(config, plan, by_origin)
    rows = [["activations", "simulated", "formula", "besides the formula"]]
    rows += [
        [
            term.name,
            gigabytes(term.found_bytes),
            gigabytes(term.planned_bytes),
            BEYOND.get(term.name, "-"),
        ]
        for term in terms
    ]
    planned = sum(term.planned_bytes for term in terms)
    rows.append(["all", gigabytes(found.activations_bytes), gigabytes(planned), "-"])
    lines = [*table(rows), "Kept between two passes at most; the formula is of bf16."]
    if config.memory.precision == "fp32":
        lines.append("This run computes in fp32, with twice the bytes for the same numbers.")
    return lines
