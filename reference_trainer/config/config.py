"""What a training run is: frozen dataclasses, validated where they are built."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal

from meshscope.analyze.formulas.schedules.published import rank_of_last_stage
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis

from .checkpoint_config import CheckpointConfig
from .checks import in_range, require
from .data_config import DataConfig
from .device_config import DeviceConfig, PaceConfig
from .fault_spec import FaultSpec
from .model_config import ModelConfig
from .replica_config import DataParallelConfig, MemoryConfig, check_gradients
from .schedule_config import ScheduleConfig
from .split_config import ContextConfig, MoeConfig, TensorConfig, check_splits

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
            f"{self.momentum} is out of range",
            where="train.momentum",
            remedy="Set it to at least 0 and below 1",
        )
        require(
            self.momentum == 0 or self.optimizer == "sgd",
            f"{self.optimizer} has averages of its own",
            where="train.momentum",
            remedy="Set it to 0, or train.optimizer to sgd",
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
            f"a {self.model.family} model can be planned, but not trained here",
            where="model.family",
            remedy="Add --dry-run, or set it to gpt",
        )

    def _check_size(self) -> None:
        """Refuse what takes minutes to plan: groups are listed, and orders replayed."""
        in_range(self.layout.world_size, 1, _MOST_RANKS, where="layout")
        turns = self.stages * self.schedule.microbatches
        require(
            turns <= _MOST_TURNS,
            f"{self.schedule.microbatches} on each of {self.stages} stages are "
            f"{turns:,} forwards in a step, more than {_MOST_TURNS:,}",
            where="schedule.microbatches",
            remedy=f"Set it to {_MOST_TURNS // self.stages} or less",
        )

    def _check_mesh(self) -> None:
        check_splits(
            self.layout, self.model, tensor=self.tensor, context=self.context, moe=self.moe
        )
        parts = self.layout.dp * self.schedule.microbatches
        per_replica = bool(self.train.replica_batch)
        require(
            self.train.global_batch % parts == 0,
            f"{self.train.global_batch} sequences do not divide into "
            f"layout.dp x schedule.microbatches = {parts}",
            where="train.replica_batch" if per_replica else "train.global_batch",
            remedy=f"Use a multiple of {self.schedule.microbatches if per_replica else parts}",
        )

    def _check_device(self) -> None:
        on_cpu = self.device.kind == "cpu"
        require(
            on_cpu or not self.pace.enabled,
            "emulates devices on a CPU and would only delay a real one",
            where="pace",
            remedy="Set every pace to 0 with device.kind = cuda",
        )
        for fault in self.faults:
            require(
                fault.rule.over_nccl or self.device.backend == "gloo",
                "over NCCL a transfer is a kernel of the GPUs, and no host can make one take longer",
                where=fault.where,
                remedy="Set device.backend to gloo, over which it works on GPUs, too",
            )
            require(
                on_cpu or not self.data_parallel.shard_ranks or fault.axis != "dp",
                "copies of the weights are summed by FSDP2 in the GPU's own memory, where nothing "
                "can be held back",
                where=fault.where,
                remedy="Set data_parallel.shard_ranks to 0, or another axis",
            )

    def _check_data(self) -> None:
        require(
            not self.data.text or self.model.vocab >= _BYTE_VALUES,
            f"{self.model.vocab} tokens cannot hold the bytes of data.text",
            where="model.vocab",
            remedy=f"Set it to {_BYTE_VALUES} or more",
        )

    def _check_replicas(self) -> None:
        self.data_parallel.check_replicas(self.layout.dp * self.layout.cp)
        check_gradients(self.memory, self.data_parallel)
        require(
            self.data_parallel.zero < 3 or not self.model.tied,
            "shards embedding and head one by one, and here they are one weight",
            where="data_parallel.zero",
            remedy="Set it to 2 or less, or model.tied to false",
        )
        require(
            self.data_parallel.zero < 3 or self.layout.ep == 1,
            f"shards all weights over the same ranks, and with layout.ep = {self.layout.ep} "
            "experts have fewer replicas than the rest",
            where="data_parallel.zero",
            remedy="Set it to 2 or less, or layout.ep to 1",
        )

    def _check_faults(self) -> None:
        for fault in self.faults:
            fault.check_mesh(self.layout)
            fault.check_steps(self.train.steps)
            require(
                fault.kind != "hot_expert" or 0 <= fault.expert < self.moe.experts,
                f"expert = {fault.expert} is none of the {self.moe.experts} experts of the model",
                where=fault.where,
                remedy="Choose a lower one, or set moe.experts",
            )
        for fault in self.faults:
            sized = bool(fault.delay_ms) != (self.pace.layer_ms > 0)
            require(
                fault.kind != "sequence_imbalance"
                or (self.data.documents == "long_tail" and sized),
                "scales the time of blocks by the packed documents of their microbatch: the pace, or "
                "a delay_ms of its own",
                where=fault.where,
                remedy="Set data.documents to long_tail, and either pace.layer_ms or its delay_ms",
            )
