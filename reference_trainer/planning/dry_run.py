"""The plan of a run as text: layout, groups, blocks, bubble, memory, checkpoint; no process is started.

A checkpoint holds fp32 weights and what the optimizer keeps of each (AdamW: two
averages), once for the whole model. Of what several replicas hold alike each writes its
share; an asynchronous save copies all that a rank holds to its host's memory first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshscope.analyze.formulas.planning.stage_split import layer_ranges
from meshscope.analyze.formulas.schedules.schedule_records import SCHEDULES, SPLIT_BACKWARD
from meshscope.probe.schema.terms import Axis

from ..config.config import TrainerConfig
from ..layout.group_members import expert_groups, shard_groups, sum_groups
from ..text_table import gigabytes, table
from .bubble_plan import BubblePlan, bubble_plans, expected_cost, stage_costs
from .memory_plan import RankMemory, memory_plan
from .parameter_counts import parameter_count
from .run_memory import run_memory

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSize:
    """Bytes of one checkpoint, without what the file format adds."""

    total: int
    """Of all ranks together."""
    written: tuple[float, ...]
    """By one rank of each pipeline position, at most: what tensor-parallel ranks or the ends of a
    tied model hold alike is counted on each of them."""
    staged: tuple[float, ...]
    """Copied to host memory by one rank of each pipeline position when it is asynchronous."""


def bytes_per_parameter(config: TrainerConfig) -> int:
    """Return the bytes that a checkpoint has for each parameter."""
    return _FP32_BYTES * (1 + len(config.train.averages))


def checkpoint_size(config: TrainerConfig) -> CheckpointSize:
    """Return the size of a checkpoint of a run."""
    per_parameter = bytes_per_parameter(config)
    plans = memory_plan(config)
    written = tuple(plan.shared_parameters * per_parameter for plan in plans)
    staged = written
    copies = config.data_parallel
    if copies.zero == 0 or copies.shard_ranks:
        parts = copies.shard_ranks or 1
        staged = tuple(plan.parameters * per_parameter / parts for plan in plans)
    return CheckpointSize(
        total=parameter_count(config.model, config.moe) * per_parameter,
        written=written,
        staged=staged,
    )


def checkpoint_lines(config: TrainerConfig) -> list[str]:
    """Return what ``--dry-run`` says of checkpoints."""
    size = checkpoint_size(config)
    kept = ", ".join(("fp32 weights", *config.train.averages))
    largest = max(size.written)
    where = size.written.index(largest)
    return [
        f"checkpoint  {gigabytes(size.total)} GB: {kept}, "
        f"{bytes_per_parameter(config)} bytes per parameter",
        f"each rank writes {gigabytes(min(size.written))} to {gigabytes(largest)} GB, most on pp "
        f"rank {where}; an asynchronous save takes up to {gigabytes(max(size.staged))} GB of host "
        "memory per rank",
    ]


_SHOWN_MEMBERS = 4


def dry_run_text(config: TrainerConfig) -> str:
    """Return everything about a run that is known before it starts."""
    sections = (
        _layout_lines(config),
        _group_lines(config),
        _stage_lines(config),
        _bubble_lines(config),
        _memory_lines(config),
        _run_memory_lines(config),
        checkpoint_lines(config),
    )
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _layout_lines(config: TrainerConfig) -> list[str]:
    layout, model, train = config.layout, config.model, config.train
    sizes = " x ".join(f"{axis}{getattr(layout, axis)}" for axis in layout.order.split("-"))
    tokens = train.global_batch * model.seq_len
    shared = f"; ep{layout.ep} inside dp x cp" if layout.ep > 1 else ""
    moe = config.moe
    experts = f"{moe.experts} experts, {moe.experts_per_token} per token, " if moe.experts else ""
    return [
        f"layout    {layout.world_size:,} ranks: {sizes} (slowest axis first){shared}",
        f"model     {model.family}, {parameter_count(model, moe):,} parameters: "
        f"{model.layers} blocks, "
        f"hidden {model.hidden:,}, MLP {model.ffn:,}, {experts}{model.heads} heads, "
        f"vocabulary {model.vocab:,}{', tied' if model.tied else ''}",
        f"step      {train.global_batch:,} sequences of {model.seq_len:,} tokens = {tokens:,} "
        f"tokens; per replica {config.schedule.microbatches} microbatches of "
        f"{config.microbatch_size}",
    ]


def _group_lines(config: TrainerConfig) -> list[str]:
    """Return one row per kind; groups of one rank communicate nothing and are left out."""
    layout = config.layout
    kinds: dict[str, Sequence[Sequence[int]]] = {
        axis.value: list(layout.groups(axis)) for axis in (Axis.TP, Axis.CP, Axis.DP, Axis.PP)
    }
    if layout.ep > 1:
        kinds["ep"] = expert_groups(layout)
    kinds |= sum_groups(layout)
    if size := config.data_parallel.shard_ranks:
        kinds["dp shards"], kinds["dp copies"] = shard_groups(layout, size)
    kinds["embedding"] = config.embedding_groups()
    rows = [
        [kind, f"{len(groups):,}", f"{len(groups[0])}", _members(groups[0])]
        for kind, groups in kinds.items()
        if groups and len(groups[0]) > 1
    ]
    header = ["groups", "number", "size", "the first"]
    return table([header, *rows]) if rows else ["groups    none: one rank"]


def _stage_lines(config: TrainerConfig) -> list[str]:
    ranges = layer_ranges(config.layers_per_stage)
    rows = [["pp rank", "stages", "blocks", "of the model", "also", "parameters per GPU"]]
    for plan in memory_plan(config):
        own = [ranges[stage] for stage in plan.stages]
        edges = ["embedding"] * (0 in plan.stages)
        edges += ["head"] * (config.stages - 1 in plan.stages)
        rows.append(
            [
                str(plan.position),
                " ".join(map(str, plan.stages)),
                str(sum(map(len, own))),
                " ".join(f"{blocks.start}-{blocks.stop - 1}" for blocks in own),
                " + ".join(edges) or "-",
                f"{plan.parameters:,}",
            ]
        )
    return table(rows)


def _bubble_lines(config: TrainerConfig) -> list[str]:
    layout, schedule = config.layout, config.schedule
    head = (
        f"bubble    p = {layout.pp} pipeline ranks, m = {schedule.microbatches} microbatches; "
        f"this run: {schedule.kind}"
    )
    if layout.pp == 1:
        return [f"{head}; one rank has no bubble"]
    rows = [["schedule", "v", "idle / ideal", "formula", "idle / step", "microbatches held"]]
    plans = bubble_plans(config)
    rows += [_bubble_row(plan) for plan in plans if plan.cost is not None]
    own = expected_cost(config)
    split = "equal stages" if len(set(stage_costs(config))) == 1 else "its unequal stages"
    return [
        head,
        *table(rows),
        *(f"{plan.kind} does not fit: {plan.refusal}" for plan in plans if plan.cost is None),
        f"with {split}, {schedule.kind} idles {own.idle_over_ideal:.2%} of ideal, "
        f"{own.idle_frac:.2%} of the step",
        "Replayed with backward = 2 forwards, half of it for the weights, sends that take no time,",
        "and steps without a barrier between them.",
    ]


def _bubble_row(plan: BubblePlan) -> list[str]:
    assert plan.cost is not None
    return [
        plan.kind.value,
        str(plan.chunks),
        f"{plan.cost.idle_over_ideal:.2%}",
        SCHEDULES[plan.kind].bubble,
        f"{plan.cost.idle_frac:.2%}",
        f"{plan.microbatches_held:.2f}",
    ]


def _memory_lines(config: TrainerConfig) -> list[str]:
    """Return GB per GPU of every pipeline rank as papers count, whatever this run's settings."""
    header = ["weights", "grads", "Adam", "Adam ZeRO-1", "mb held", "act.", "act. SP", "recomputed"]
    rows = [["pp rank", *header]]
    rows += [_memory_row(plan) for plan in memory_plan(config)]
    return [
        "memory    GB per GPU (10^9 bytes) as papers count: bf16 with fp32 Adam",
        *table(rows),
        "Per parameter 2 + 2 + 12 bytes (arXiv 1910.02054, section 3.1); ZeRO-1 divides the 12 by "
        f"dp x cp = {config.layout.dp * config.layout.cp}, for experts by that over ep.",
        "Activations at their peak by arXiv 2205.05198, section 4, with fused attention and no "
        "dropout: all kept;",
        "with sequence parallelism; with full recomputation. Vocabulary split over tp.",
    ]


def _run_memory_lines(config: TrainerConfig) -> list[str]:
    """Return GB per GPU of every pipeline rank with the settings of this run."""
    memory, zero = config.memory, config.data_parallel.zero
    rows = [["pp rank", "weights", "grads", "optimizer", "act.", "sum"]]
    for plan in memory_plan(config):
        held = run_memory(config, plan)
        sizes = (held.weights, held.gradients, held.optimizer, held.activations, held.total)
        rows.append([str(plan.position), *map(gigabytes, sizes)])
    lines = [
        f"this run  GB per GPU: {memory.precision}, {config.train.optimizer}, ZeRO-{zero}, "
        f"recompute {memory.recompute}",
        *table(rows),
        f"Weights, {memory.gradients} gradients, masters and averages as kept between steps; "
        "activations at their peak.",
    ]
    if zero >= 2:
        whole = "gradients" if zero == 2 else "weights and gradients"
        lines.append(f"Within a step ZeRO-{zero} makes {whole} whole, in pieces or at once.")
    if memory.recompute != "none" and config.schedule.kind in SPLIT_BACKWARD:
        lines.append(
            "What a backward of two halves repeats is held from the first to the second, on top."
        )
    if memory.offload:
        lines.append("Activations are offloaded: they are in host memory.")
    return lines


def _memory_row(plan: RankMemory) -> list[str]:
    held = plan.activations
    sizes = (plan.weight_bytes, plan.gradient_bytes, plan.adam_bytes, plan.adam_zero1_bytes)
    activations = (held.kept, held.sequence_parallel, held.recomputed)
    return [
        str(plan.position),
        *(gigabytes(size) for size in sizes),
        f"{plan.microbatches_held:.2f}",
        *(gigabytes(size) for size in activations),
    ]


def _members(ranks: Sequence[int]) -> str:
    """Return ranks in words, the middle of long groups left out.

    >>> _members((0, 8, 16, 24, 32, 40))
    '0 8 16 … 40'
    """
    if len(ranks) <= _SHOWN_MEMBERS:
        return " ".join(map(str, ranks))
    return f"{' '.join(map(str, ranks[: _SHOWN_MEMBERS - 1]))} … {ranks[-1]}"
