"""Settings of parallelism: replicas, and the axes that split layers and sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import message

from .checks import in_range, require


class ModelSizes(Protocol):
    """What of a model is split over ranks."""

    @property
    def heads(self) -> int:
        """Return the attention heads."""

    @property
    def ffn(self) -> int:
        """Return the width inside the MLP."""

    @property
    def vocab(self) -> int:
        """Return the rows of the embedding."""

    @property
    def seq_len(self) -> int:
        """Return the tokens of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorConfig:
    """How the tensor-parallel ranks share a layer."""

    sequence_parallel: bool = False
    """Split norms, residuals and dropout over the tokens too: reduce-scatters and all-gathers
    take the place of the all-reduces, and activations between layers shrink by layout.tp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig:
    """How the context-parallel ranks share a sequence."""

    form: Literal["ring", "all_to_all"] = "ring"
    """``ring`` passes keys and values around while it computes; ``all_to_all`` exchanges tokens
    for heads before attention and back after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Experts in place of the MLP of every block."""

    experts: int = 0
    """Experts of a block; 0: one dense MLP."""
    experts_per_token: int = 2
    """Experts that each token is sent to."""
    capacity_factor: float = 0.0
    """Most tokens that one rank sends to an expert, over its even share; what is above is
    dropped. 0: nothing is dropped, and ranks exchange as many tokens as the router says."""
    balance_weight: float = 0.01
    """Weight of the loss that makes the router spread tokens evenly."""

    def __post_init__(self) -> None:
        """Validate the counts.

        Raises:
            ConfigError: A count or a weight is out of range.
        """
        for name in ("experts", "capacity_factor", "balance_weight"):
            in_range(getattr(self, name), 0, where=f"moe.{name}")
        require(
            self.experts_per_token >= 1 and (not self.experts or self.experts >= self.chosen),
            message(
                "refused.experts_of_token",
                experts_per_token=self.experts_per_token,
                experts=self.experts,
            ),
            where="moe.experts_per_token",
            remedy=message("advice.fewer_experts_of_token"),
        )

    @property
    def chosen(self) -> int:
        """Return the MLPs that a token passes in a block."""
        return self.experts_per_token if self.experts else 1


def check_splits(
    layout: ParallelLayout,
    model: ModelSizes,
    *,
    tensor: TensorConfig,
    context: ContextConfig,
    moe: MoeConfig,
) -> None:
    """Validate that the mesh divides the model.

    Raises:
        ConfigError: A size is not a multiple of what splits it.
    """
    for name in ("heads", "ffn", "vocab"):
        _divides(f"model.{name}", getattr(model, name), layout.tp, "layout.tp")
    _check_tokens(layout, model, tensor, context)
    if context.form == "all_to_all":
        _divides("model.heads", model.heads, layout.tp * layout.cp, "layout.tp x layout.cp")
    replicas = layout.dp * layout.cp
    require(
        replicas % layout.ep == 0,
        message("refused.ep_over_replicas", ep=layout.ep, replicas=replicas),
        where="layout.ep",
        remedy=message("advice.divisor_for_experts"),
    )
    require(
        layout.ep == 1 or moe.experts > 0,
        message("refused.no_experts_to_share", ep=layout.ep),
        where="layout.ep",
        remedy=message("advice.multiple_of_experts"),
    )
    _divides("moe.experts", moe.experts, layout.ep, "layout.ep")


def _check_tokens(
    layout: ParallelLayout, model: ModelSizes, tensor: TensorConfig, context: ContextConfig
) -> None:
    """Validate that every rank gets as many tokens of a sequence as any other."""
    zigzag = 2 if layout.cp > 1 and context.form == "ring" else 1
    parts, name = layout.cp * zigzag, "2 x layout.cp" if zigzag == 2 else "layout.cp"
    if tensor.sequence_parallel:
        require(
            layout.tp > 1,
            message("refused.tokens_over_one_rank"),
            where="tensor.sequence_parallel",
            remedy=message("advice.tp_or_no_split"),
        )
        parts, name = parts * layout.tp, f"{name} x layout.tp"
    _divides("model.seq_len", model.seq_len, parts, name)


def _divides(field: str, value: int, parts: int, parts_name: str) -> None:
    require(
        value % parts == 0,
        message("refused.not_a_multiple", value=value, parts_name=parts_name, parts=parts),
        where=field,
        remedy=message("advice.change_one"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelConfig:
    """What the replicas share, and how their gradients travel."""

    zero: Literal[0, 1, 2, 3] = 0
    """What is sharded over the replicas (Rajbhandari et al. 2020, arXiv 1910.02054): nothing;
    1: optimizer state; 2: gradients too; 3: weights too."""
    shard_ranks: int = 0
    """With zero = 3, consecutive replicas that share one copy of the weights; 0: all of them.
    Fewer is hybrid sharding: groups of replicas hold a copy each."""
    compression: Literal["none", "bf16", "int8"] = "none"
    """Form of fp32 gradients on the wire; the sums and the optimizer stay fp32."""

    def __post_init__(self) -> None:
        """Validate the combination.

        Raises:
            ConfigError: A setting has no effect under the ZeRO stage that was chosen.
        """
        in_range(self.shard_ranks, 0, where="data_parallel.shard_ranks")
        if self.shard_ranks and self.zero != 3:
            raise ConfigError(
                message("refused.shards_whole_weights", zero=self.zero),
                where="data_parallel.shard_ranks",
                remedy=message("advice.zero_3"),
            )
        if self.compression != "none" and self.zero == 3:
            raise ConfigError(
                message("refused.no_buckets"),
                where="data_parallel.compression",
                remedy=message("advice.no_compression"),
            )

    def check_replicas(self, replicas: int) -> None:
        """Refuse shard groups that do not divide the replicas.

        Args:
            replicas: Ranks with the same weights: dp x cp.

        Raises:
            ConfigError: The number of replicas is no multiple of ``shard_ranks``.
        """
        if self.shard_ranks and replicas % self.shard_ranks:
            raise ConfigError(
                message("refused.shard_ranks", shard_ranks=self.shard_ranks, replicas=replicas),
                where="data_parallel.shard_ranks",
                remedy=message("advice.divisor_of_replicas"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """What is kept between forward and backward, where, and in which precision."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """Of weights and activations in forward and backward. With ``bf16`` the optimizer updates
    fp32 master weights."""
    gradients: Literal["fp32", "bf16"] = "fp32"
    """Of the gradient buckets: what microbatches add up in, what travels, and what is kept. With
    ``bf16`` the weights must be bf16 too; masters and optimizer stay fp32."""
    recompute: Literal["none", "full", "selective"] = "none"
    """Activation checkpointing. ``full`` keeps the input of each block and computes the block
    again in the backward; ``selective`` also keeps what collectives gave, and repeats none."""
    offload: bool = False
    """Keep the activations of the blocks in host memory until the backward needs them."""
    account: bool = False
    """Write what each phase of a step keeps in memory, and the peak of the activations."""

    def __post_init__(self) -> None:
        """Validate the combination.

        Raises:
            ConfigError: Gradients would be coarser than the weights that they are of.
        """
        require(
            self.gradients == "fp32" or self.precision == "bf16",
            message("refused.rounds_gradients"),
            where="memory.gradients",
            remedy=message("advice.bf16_or_fp32"),
        )


def check_gradients(memory: MemoryConfig, data_parallel: DataParallelConfig) -> None:
    """Refuse bf16 gradients where there are no buckets of them, or where they would be compressed.

    Raises:
        ConfigError: What holds or sends the gradients wants them in fp32.
    """
    if memory.gradients == "fp32":
        return
    require(
        data_parallel.zero < 3,
        message("refused.type_of_buckets"),
        where="memory.gradients",
        remedy=message("advice.fp32_or_zero_2"),
    )
    require(
        data_parallel.compression == "none",
        message("refused.compresses_fp32"),
        where="data_parallel.compression",
        remedy=message("advice.none_or_fp32"),
    )
