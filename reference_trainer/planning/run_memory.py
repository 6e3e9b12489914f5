"""What a rank of this run holds, by formula: its own precision, optimizer, sharding, recomputation.

``memory_plan.py`` has the numbers that papers give, for bf16 and Adam. Here are those of
the trainer, P parameters on a rank of which it owns P / s where s replicas share them::

    weights      P x 2 or 4; with ZeRO-3 between steps 4 P / s
    gradients    buckets, P x 2 or 4; ZeRO-2 has only the sums of its part, ZeRO-3 nothing, having
                 made them in the backward and dropped them in the update
    optimizer    fp32 masters of bf16 weights, and the averages, 4 bytes each, shared from ZeRO-1 on
    activations  the terms below, which are of bf16; the loss is fp32

What the activations of ``memory_plan.py`` consist of, and what a simulation finds of each part.

The formula is a sum over what a block keeps: ``analyze/formulas/planning/layer_parts.py``.
Full recomputation keeps 2 h, the input of the block. Selective recomputation, as
it is done here, keeps what the row-parallel layers take and the residual stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshscope.analyze.formulas.planning.layer_parts import Part

from ..config.config import TrainerConfig
from .memory_plan import RankMemory
from .parameter_counts import block_parts, block_tokens

RESIDUAL = "residual stream"
NORMS = "outputs of the norms"
LINEAR = "first linear layers"
ATTENTION = "attention"
GELU = "GELU"
GATHERED = "gathered inputs"
EXPERTS = "router and experts"
LOSS = "logits and loss"
OTHER = "the rest"

BEYOND = {
    RESIDUAL: "what stages receive and send counts as messages",
    NORMS: "mean and deviation of each token, and the norm of the head",
    ATTENTION: "the logarithm of the normaliser of each token and head",
    GATHERED: "kept whole after the all-gather; the paper keeps 1 / t and gathers again",
    EXPERTS: "the router in fp32, and rows before and after every exchange",
    LOSS: "logits in the precision of the model, beside fp32 probabilities",
    OTHER: "masks of the embedding, losses",
}
"""What the trainer keeps of each part that the formula does not have."""

_LOSS_OPERATORS = frozenset({"mm", "div", "exp", "sub", "_log_softmax", "_to_copy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of the activations of a rank, at their peak."""

    name: str
    """What it is."""
    planned_bytes: float
    """By the formula."""
    found_bytes: int
    """By the simulation."""


def activation_terms(
    config: TrainerConfig, plan: RankMemory, found: Mapping[tuple[str, tuple[int, ...]], int]
) -> list[Term]:
    """Return the parts that the formula or the simulation has.

    Args:
        config: The run.
        plan: What the rank must hold by formula.
        found: Bytes of the activations by operator and shape.
    """
    planned = dict(planned_terms(config, plan))
    by_name = dict.fromkeys((*planned, OTHER), 0)
    for (operator, shape), size_bytes in found.items():
        by_name[_name(config, operator, shape)] += size_bytes
    return [
        Term(name=name, planned_bytes=planned.get(name, 0.0), found_bytes=size_bytes)
        for name, size_bytes in by_name.items()
        if size_bytes or planned.get(name)
    ]


def planned_terms(config: TrainerConfig, plan: RankMemory) -> Iterator[tuple[str, float]]:
    """Yield each part by the formula; they sum to the planned activations of the rank."""
    model, recompute = config.model, config.memory.recompute
    tokens = block_tokens(config)
    blocks = sum(config.layers_per_stage[stage] for stage in plan.stages)
    held = plan.microbatches_held * blocks * tokens
    parts = block_parts(config, sequence_parallel=config.tensor.sequence_parallel)
    all_kept, some_kept = recompute == "none", recompute != "full"
    residual = parts[Part.RESIDUAL] if some_kept else 2 * model.hidden
    first, last = parts.get(Part.MLP_IN, 0), parts.get(Part.MLP_OUT, 0)
    experts = sum(parts.get(part, 0) for part in (Part.EXPERTS_IN, Part.EXPERTS_OUT, Part.ROWS))
    yield RESIDUAL, held * residual
    yield NORMS, held * all_kept * parts[Part.NORMS]
    yield LINEAR, held * all_kept * (parts[Part.QKV] + first)
    yield ATTENTION, held * some_kept * parts[Part.ATTENTION]
    yield GELU, held * some_kept * last
    yield GATHERED, 0
    yield EXPERTS, held * some_kept * experts
    has_head = config.stages - 1 in plan.stages
    yield LOSS, 4 * tokens * model.vocab / config.layout.tp * has_head


def _name(config: TrainerConfig, operator: str, shape: Sequence[int]) -> str:
    """Return the part that a tensor belongs to, by the operator that made it and its shape."""
    model, tp = config.model, config.layout.tp
    by_operator = {"native_layer_norm": NORMS, "add": RESIDUAL, "addmm": LINEAR, "linear": LINEAR}
    if operator in by_operator:
        return by_operator[operator]
    joined = config.tensor.sequence_parallel and len(shape) == 4 and shape[-1] == model.hidden
    if operator in ("new_empty", "clone") and joined:
        return GATHERED
    if operator == "clone" or operator.startswith("_scaled_dot_product") or len(shape) >= 4:
        return ATTENTION
    if operator in _LOSS_OPERATORS and len(shape) == 2 and shape[-1] == model.vocab // tp:
        return LOSS
    if config.moe.experts:
        return EXPERTS
    return GELU if operator == "gelu" else OTHER


_FP32_BYTES = 4
_BYTES = {"bf16": 2, "fp32": _FP32_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """Bytes of one rank."""

    weights: float
    """Kept from step to step."""
    gradients: float
    """Kept from step to step."""
    optimizer: float
    """Masters and averages, kept from step to step."""
    activations: float
    """At their peak; in host memory where they are offloaded."""

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.weights + self.gradients + self.optimizer + self.activations


def run_memory(config: TrainerConfig, plan: RankMemory) -> RunMemory:
    """Return what the ranks of a pipeline position hold in a run.

    Args:
        config: The run.
        plan: Their parameters and what their order holds.
    """
    zero, precision = config.data_parallel.zero, _BYTES[config.memory.precision]
    whole, part = plan.parameters, own_parameters(config, plan)
    fp32 = len(config.train.averages) + (config.memory.precision == "bf16" and zero < 3)
    return RunMemory(
        weights=precision * whole if zero < 3 else _FP32_BYTES * part,
        gradients=_BYTES[config.memory.gradients] * (whole * (zero < 2) + part * (zero == 2)),
        optimizer=_FP32_BYTES * fp32 * (part if zero else whole),
        activations=sum(
            size * (1 if name == LOSS else precision / 2)
            for name, size in planned_terms(config, plan)
        ),
    )


def own_parameters(config: TrainerConfig, plan: RankMemory) -> float:
    """Return the parameters that a rank owns where its replicas share them."""
    if config.data_parallel.shard_ranks:
        return plan.parameters / config.data_parallel.shard_ranks
    return plan.shared_parameters
