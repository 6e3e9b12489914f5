"""Settings of data parallelism and of what a rank keeps in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshscope.probe.schema.errors import ConfigError

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
                f"shards weights, which data_parallel.zero = {self.zero} keeps whole",
                where="data_parallel.shard_ranks",
                remedy="Set data_parallel.zero to 3, or this to 0",
            )
        if self.compression != "none" and self.zero == 3:
            raise ConfigError(
                "belongs to the gradient buckets, which zero = 3 does not have",
                where="data_parallel.compression",
                remedy="Set it to none, or data_parallel.zero to 2 or less",
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
                f"{self.shard_ranks} does not divide layout.dp x layout.cp = {replicas}",
                where="data_parallel.shard_ranks",
                remedy="Choose a divisor of layout.dp x layout.cp",
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
            "would round the gradients of fp32 weights",
            where="memory.gradients",
            remedy="Set memory.precision to bf16, or this to fp32",
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
        "is of the gradient buckets, and FSDP2 keeps gradients as precise as its fp32 parts",
        where="memory.gradients",
        remedy="Set it to fp32, or data_parallel.zero to 2 or less",
    )
    require(
        data_parallel.compression == "none",
        "compresses fp32 gradients, and those of memory.gradients = bf16 travel as they are",
        where="data_parallel.compression",
        remedy="Set it to none, or memory.gradients to fp32",
    )
