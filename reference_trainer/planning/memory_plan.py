"""What each pipeline rank must hold, from formulas, before anything runs.

Weights, gradients and optimizer: 2 + 2 + 12 bytes per parameter for bf16 training with
Adam in fp32 (master weight and two moments; Rajbhandari et al. 2020, ZeRO, arXiv
1910.02054, section 3.1). ZeRO-1 divides the 12 by the replicas (same paper, section 5.1).

Activations of one block: ``analyze/formulas/planning/layer_parts.py``, less the attention scores, which a
fused attention does not keep. Full recomputation keeps the input ``2 s b h`` (Korthikanti et al.
2022, arXiv 2205.05198, section 5). The head keeps ``4 s b v / t`` of fp32 logits (section 4.3) for
one microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshscope.analyze.formulas.planning.pipeline_replay import held_peak
from meshscope.analyze.formulas.schedules.schedule_records import rank_orders, stages_of_rank

from ..config.config import TrainerConfig
from .parameter_counts import (
    block_parameters,
    block_parts,
    block_tokens,
    embedding_parameters,
    expert_parameters,
    head_parameters,
    moe_block_parameters,
    vocabulary_rows,
)

WEIGHT_BYTES = 2
GRADIENT_BYTES = 2
ADAM_BYTES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """The most that the forwards of one rank leave behind at once, by what is done about it."""

    kept: float
    """Everything is kept."""
    sequence_parallel: float
    """Everything is kept, and the tensor-parallel ranks share what is outside the matrices."""
    recomputed: float
    """Only the inputs of the blocks are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One rank of a pipeline position; all ranks there are alike."""

    position: int
    """Place on the pipeline axis."""
    stages: tuple[int, ...]
    """Its stages, by chunk."""
    parameters: int
    """Parameters on one GPU."""
    microbatches_held: float
    """Peak of activations held, in microbatches through all blocks of the rank."""
    activations: ActivationBytes
    """Peak of the activations held."""
    optimizer_shards: int
    """Replicas that ZeRO-1 spreads the optimizer over."""
    expert_parameters: int = 0
    """Those of the parameters that belong to experts."""
    expert_ranks: int = 1
    """Ranks that share the experts: only one in so many replicas holds the same ones."""

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of bf16 weights."""
        return self.parameters * WEIGHT_BYTES

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of bf16 gradients."""
        return self.parameters * GRADIENT_BYTES

    @property
    def adam_bytes(self) -> int:
        """Return the bytes of master weights and moments, not sharded."""
        return self.parameters * ADAM_BYTES

    @property
    def adam_zero1_bytes(self) -> float:
        """Return the bytes of master weights and moments under ZeRO-1."""
        return self.shared_parameters * ADAM_BYTES

    @property
    def shared_parameters(self) -> float:
        """Return one replica's share of the parameters; fewer replicas have the same experts."""
        dense = self.parameters - self.expert_parameters
        return (dense + self.expert_parameters * self.expert_ranks) / self.optimizer_shards


def memory_plan(config: TrainerConfig) -> tuple[RankMemory, ...]:
    """Return what every pipeline rank holds."""
    layout, schedule = config.layout, config.schedule
    orders = rank_orders(schedule.kind, layout.pp, schedule.microbatches, layout.vpp)
    blocks_of = config.layers_per_stage
    plans = []
    for position, order in enumerate(orders):
        stages = stages_of_rank(schedule.kind, position, layout.pp, layout.vpp)
        held = held_peak(order, blocks_of.__getitem__)
        blocks = sum(blocks_of[stage] for stage in stages)
        plans.append(
            RankMemory(
                position=position,
                stages=stages,
                parameters=_parameters(config, stages),
                microbatches_held=held / blocks,
                activations=_activations(config, stages, held),
                optimizer_shards=layout.dp * layout.cp,
                expert_parameters=blocks
                * expert_parameters(config.model, config.moe, layout.tp, layout.ep),
                expert_ranks=layout.ep,
            )
        )
    return tuple(plans)


def _parameters(config: TrainerConfig, stages: tuple[int, ...]) -> int:
    """Return the parameters of one rank; a tied embedding counts once where both ends meet."""
    model, tp, last = config.model, config.layout.tp, config.stages - 1
    block = block_parameters(model, tp)
    if config.moe.experts:
        block = moe_block_parameters(model, config.moe, tp, config.layout.ep)
    total = block * sum(config.layers_per_stage[stage] for stage in stages)
    if 0 in stages:
        total += embedding_parameters(model, tp)
    if last in stages:
        total += head_parameters(model, tp)
    if model.tied and 0 in stages and last in stages:
        total -= vocabulary_rows(model, tp) * model.hidden
    return total


def _activations(
    config: TrainerConfig, stages: tuple[int, ...], blocks_held: float
) -> ActivationBytes:
    """Return the peak of activations, with ``blocks_held`` blocks x microbatches held."""
    model, tp, tokens = config.model, config.layout.tp, block_tokens(config)
    edge = 4 * tokens * model.vocab / tp if config.stages - 1 in stages else 0.0
    kept, shared = (
        blocks_held * tokens * sum(block_parts(config, sequence_parallel=shares).values())
        for shares in (False, True)
    )
    return ActivationBytes(
        kept=kept + edge,
        sequence_parallel=shared + edge,
        recomputed=blocks_held * tokens * 2 * model.hidden + edge,
    )
