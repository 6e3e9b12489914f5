"""What a training run is: frozen dataclasses, validated where they are built."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal

from meshscope.analyze.formulas.schedules.schedule_records import rank_of_last_stage
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import message
from meshscope.probe.schema.terms import Axis

from .checks import in_range, require
from .fault_spec import FaultSpec
from .parallel_config import (
    ContextConfig,
    DataParallelConfig,
    MemoryConfig,
    MoeConfig,
    TensorConfig,
    check_gradients,
    check_splits,
)
from .schedule_config import ScheduleConfig
from .sections import CheckpointConfig, DataConfig, DeviceConfig, ModelConfig, PaceConfig

__all__ = [
    "CheckpointConfig",
    "ContextConfig",
    "DataConfig",
    "DataParallelConfig",
    "DeviceConfig",
    "MemoryConfig",
    "ModelConfig",
    "MoeConfig",
    "PaceConfig",
    "ScheduleConfig",
    "TensorConfig",
    "TrainConfig",
    "TrainerConfig",
]

_BYTE_VALUES = 256
_MOST_RANKS = 1 << 17
"""More than any published job has; every group of them is listed."""
_MOST_TURNS = 1 << 15
"""Forwards of a replica's step, four times those of MT-NLG 530B; every schedule is replayed."""
_MOST_SEED = 10**12
"""Generators are seeded by it, times a million, in 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The optimisation."""

    steps: int = 8
    """Optimizer steps."""
    global_batch: int = 8
    """Sequences per step over all data-parallel ranks and microbatches."""
    replica_batch: int = 0
    """Sequences per step of one replica, from which ``global_batch`` follows where a
    configuration is loaded; 0: ``global_batch`` is given."""
    learning_rate: float = 0.1
    """Constant learning rate."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD, or AdamW without weight decay."""
    momentum: float = 0.0
    """Of SGD: how much of the last update is kept; 0: nothing."""
    seed: int = 1
    """Seed of the weights and of the data."""
    max_grad_norm: float = 0.0
    """Norm of the whole model's gradient above which it is scaled down; 0 neither clips nor
    measures, ``inf`` only measures."""
    bucket_bytes: int = 25 << 20
    """Gradient bucket of the data-parallel reducer, in bytes; a larger single gradient gets a
    bucket of its own."""

    def __post_init__(self) -> None:
        """Validate the counts.

        Raises:
            ConfigError: A number is out of range, or a setting has no effect.
        """
        for name in ("steps", "global_batch", "bucket_bytes"):
            in_range(getattr(self, name), 1, where=f"train.{name}")
        for name in ("learning_rate", "replica_batch"):
            in_range(getattr(self, name), 0, where=f"train.{name}")
        in_range(self.max_grad_norm, 0, inf, where="train.max_grad_norm")
        in_range(self.seed, 0, _MOST_SEED, where="train.seed")
        require(
            0 <= self.momentum < 1,
            message("refused.out_of_range", value=self.momentum),
            where="train.momentum",
            remedy=message("advice.from_0_below_1"),
        )
        require(
            self.momentum == 0 or self.optimizer == "sgd",
            message("refused.own_averages", optimizer=self.optimizer),
            where="train.momentum",
            remedy=message("advice.no_momentum_or_sgd"),
        )

    @property
    def averages(self) -> tuple[str, ...]:
        """Return what the optimizer keeps for each weight, by torch's names."""
        if self.optimizer == "adamw":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self.momentum else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """A whole run."""

    layout: ParallelLayout = field(default_factory=ParallelLayout)
    """The mesh."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The transformer."""
    tensor: TensorConfig = field(default_factory=TensorConfig)
    """Tensor parallelism."""
    context: ContextConfig = field(default_factory=ContextConfig)
    """Context parallelism."""
    moe: MoeConfig = field(default_factory=MoeConfig)
    """Mixture of experts."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """The pipeline schedule."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Steps, batch and optimizer."""
    device: DeviceConfig = field(default_factory=DeviceConfig)
    """Device and backend."""
    pace: PaceConfig = field(default_factory=PaceConfig)
    """Emulated device times."""
    data: DataConfig = field(default_factory=DataConfig)
    """Input pipeline."""
    data_parallel: DataParallelConfig = field(default_factory=DataParallelConfig)
    """Sharding over the replicas, and the form of gradients on the wire."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """Precision, and what is kept for the backward."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Where training is saved, and where it goes on."""
    faults: tuple[FaultSpec, ...] = ()
    """Faults to inject, with their step windows."""

    def __post_init__(self) -> None:
        """Validate what several sections decide together.

        Raises:
            ConfigError: The mesh does not divide the model or the batch, or a
                setting needs another device.
        """
        self._check_size()
        self._check_mesh()
        self.schedule.check_mesh(self.layout)
        self.schedule.check_layers(self.layout, self.model.layers)
        self._check_device()
        self._check_data()
        self._check_replicas()
        self._check_faults()

    @property
    def microbatch_size(self) -> int:
        """Return the sequences of one microbatch."""
        return self.train.global_batch // (self.layout.dp * self.schedule.microbatches)

    @property
    def stages(self) -> int:
        """Return the pipeline stages of the model: chunks of all pipeline ranks."""
        return self.layout.pp * self.layout.vpp

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Return the blocks of each stage in model order, by hand or by weight."""
        return self.schedule.split(self.model.layers, self.stages)

    def embedding_groups(self) -> list[tuple[int, ...]]:
        """Return the pairs of ranks that hold a copy each of a tied embedding; empty if none do."""
        last = rank_of_last_stage(self.schedule.kind, self.layout.pp)
        if not self.model.tied or last == 0:
            return []
        return [(ranks[0], ranks[last]) for ranks in self.layout.groups(Axis.PP)]

    def check_trainable(self) -> None:
        """Refuse what can be planned with ``--dry-run`` but is not built here.

        Raises:
            ConfigError: The model family has no implementation.
        """
        require(
            self.model.family == "gpt",
            message("refused.family_not_trained", family=self.model.family),
            where="model.family",
            remedy=message("advice.dry_run_or_gpt"),
        )

    def _check_size(self) -> None:
        """Refuse what takes minutes to plan: groups are listed, and orders replayed."""
        in_range(self.layout.world_size, 1, _MOST_RANKS, where="layout")
        turns = self.stages * self.schedule.microbatches
        require(
            turns <= _MOST_TURNS,
            message(
                "refused.too_many_forwards",
                microbatches=self.schedule.microbatches,
                stages=self.stages,
                turns=turns,
                most=_MOST_TURNS,
            ),
            where="schedule.microbatches",
            remedy=message("advice.set_at_most", most=_MOST_TURNS // self.stages),
        )

    def _check_mesh(self) -> None:
        check_splits(
            self.layout, self.model, tensor=self.tensor, context=self.context, moe=self.moe
        )
        parts = self.layout.dp * self.schedule.microbatches
        per_replica = bool(self.train.replica_batch)
        require(
            self.train.global_batch % parts == 0,
            message(
                "refused.sequences_over_microbatches",
                global_batch=self.train.global_batch,
                parts=parts,
            ),
            where="train.replica_batch" if per_replica else "train.global_batch",
            remedy=message(
                "advice.use_multiple", count=self.schedule.microbatches if per_replica else parts
            ),
        )

    def _check_device(self) -> None:
        on_cpu = self.device.kind == "cpu"
        require(
            on_cpu or not self.pace.enabled,
            message("refused.pace_on_gpu"),
            where="pace",
            remedy=message("advice.no_pace"),
        )
        for fault in self.faults:
            require(
                fault.rule.over_nccl or self.device.backend == "gloo",
                message("refused.kernel_of_nccl"),
                where=fault.where,
                remedy=message("advice.gloo_for_slow_link"),
            )
            require(
                on_cpu or not self.data_parallel.shard_ranks or fault.axis != "dp",
                message("refused.summed_by_fsdp2"),
                where=fault.where,
                remedy=message("advice.no_shard_ranks"),
            )

    def _check_data(self) -> None:
        require(
            not self.data.text or self.model.vocab >= _BYTE_VALUES,
            message("refused.vocab_of_bytes", vocab=self.model.vocab),
            where="model.vocab",
            remedy=message("advice.set_at_least", least=_BYTE_VALUES),
        )

    def _check_replicas(self) -> None:
        self.data_parallel.check_replicas(self.layout.dp * self.layout.cp)
        check_gradients(self.memory, self.data_parallel)
        require(
            self.data_parallel.zero < 3 or not self.model.tied,
            message("refused.shards_tied_weight"),
            where="data_parallel.zero",
            remedy=message("advice.untied"),
        )
        require(
            self.data_parallel.zero < 3 or self.layout.ep == 1,
            message("refused.shards_experts", ep=self.layout.ep),
            where="data_parallel.zero",
            remedy=message("advice.ep_1"),
        )

    def _check_faults(self) -> None:
        for fault in self.faults:
            fault.check_mesh(self.layout)
            fault.check_steps(self.train.steps)
            require(
                fault.kind != "hot_expert" or 0 <= fault.expert < self.moe.experts,
                message("refused.no_such_expert", expert=fault.expert, experts=self.moe.experts),
                where=fault.where,
                remedy=message("advice.lower_expert"),
            )
        for fault in self.faults:
            sized = bool(fault.delay_ms) != (self.pace.layer_ms > 0)
            require(
                fault.kind != "sequence_imbalance"
                or (self.data.documents == "long_tail" and sized),
                message("refused.scales_no_time"),
                where=fault.where,
                remedy=message("advice.long_tail"),
            )
