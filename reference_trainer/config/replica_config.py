"""Settings of data parallelism and of what a rank keeps in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import message

from .checks import in_range, require


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
