"""What a training run is: frozen dataclasses, validated where they are built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis

from .checks import require as _require
from .fault_plan import FaultSpec
from .replica_config import DataParallelConfig, MemoryConfig
from .schedule_config import ScheduleConfig
from .schedules import rank_of_last_stage
from .split_config import ContextConfig, MoeConfig, TensorConfig, check_splits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The decoder transformer."""

    layers: int = 4
    """Transformer blocks in the whole model."""
    hidden: int = 64
    """Width of the residual stream."""
    ffn: int = 256
    """Width inside the MLP."""
    heads: int = 4
    """Attention heads; each has hidden / heads channels."""
    vocab: int = 256
    """Rows of the embedding and of the output head."""
    seq_len: int = 32
    """Tokens per sequence."""
    tied: bool = False
    """The output head is the token embedding, one parameter for both (Press and Wolf 2017)."""
    family: Literal["gpt", "llama"] = "gpt"
    """``gpt``: learned positions, layer norm, biases, GELU. ``llama``: rotary positions, RMS norm,
    no biases, gated MLP; it can be planned with --dry-run, but is not built here."""
    kv_heads: int = 0
    """Heads of keys and values that groups of heads share; 0: as many as heads. llama only."""

    def __post_init__(self) -> None:
        """Validate sizes.

        Raises:
            ConfigError: A size is below one, or heads do not divide the width.
        """
        for name in ("layers", "hidden", "ffn", "heads", "vocab", "seq_len"):
            _require(getattr(self, name) >= 1, "must be at least 1", where=f"model.{name}")
        _require(
            self.hidden % self.heads == 0,
            f"{self.hidden} is not a multiple of model.heads = {self.heads}",
            where="model.hidden",
            remedy="Choose a width that the heads divide",
        )
        _require(
            self.kv_heads == 0 or (self.kv_heads > 0 and self.heads % self.kv_heads == 0),
            f"{self.kv_heads} does not divide model.heads = {self.heads}",
            where="model.kv_heads",
            remedy="Choose a divisor of the heads, or 0 for as many",
        )
        _require(
            self.family == "llama" or self.kv_heads in (0, self.heads),
            "shared keys and values belong to the llama family",
            where="model.kv_heads",
            remedy="Set it to 0, or model.family to llama",
        )

    @property
    def kv_width(self) -> int:
        """Return the width of the keys, which is that of the values."""
        return self.hidden // self.heads * (self.kv_heads or self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The optimisation."""

    steps: int = 8
    """Optimizer steps."""
    global_batch: int = 8
    """Sequences per step over all data-parallel ranks and microbatches."""
    learning_rate: float = 0.1
    """Constant learning rate."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Plain SGD, or AdamW without weight decay."""
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
            ConfigError: A count is below one or the learning rate is negative.
        """
        for name in ("steps", "global_batch", "bucket_bytes"):
            _require(getattr(self, name) >= 1, "must be at least 1", where=f"train.{name}")
        for name in ("learning_rate", "max_grad_norm"):
            _require(getattr(self, name) >= 0, "must not be negative", where=f"train.{name}")
        _require(self.seed >= 0, "must not be negative", where="train.seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Where the run executes."""

    kind: Literal["cpu", "cuda"] = "cpu"
    """Device of parameters and activations; ``cuda`` takes the device of the local rank."""
    backend: Literal["gloo", "nccl"] = "gloo"
    """torch.distributed backend of every process group."""
    timeout_s: float = 300.0
    """Time after which a collective that does not complete ends the run, in seconds."""

    def __post_init__(self) -> None:
        """Validate the combination.

        Raises:
            ConfigError: nccl was asked for without cuda, or the timeout is not positive.
        """
        _require(
            self.backend == "gloo" or self.kind == "cuda",
            "nccl moves device memory only",
            where="device.backend",
            remedy="Set device.kind to cuda, or device.backend to gloo",
        )
        _require(self.timeout_s > 0, "must be positive", where="device.timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceConfig:
    """Least wall time of each part of the model: a device per rank, emulated.

    Eight ranks on two cores take turns on the cores, so the wall time of their
    compute says more about the operating system than about the model. With a
    pace, each part runs at its real speed and then sleeps until the given time
    has gone by; sleeping ranks need no core, so they behave as if each had a
    device of its own. It is an emulation: durations are set here, not measured,
    and only what happens between the ranks (order, waits, bubbles, faults) is
    real. Time spent waiting for communication does not count towards the pace.
    The backward of a part gets twice its time. 0 switches the pace of a part off.
    """

    layer_ms: float = 0.0
    """One block's forward, in milliseconds."""
    embed_ms: float = 0.0
    """The embedding's forward, in milliseconds."""
    head_ms: float = 0.0
    """The final norm and output head's forward, in milliseconds."""

    def __post_init__(self) -> None:
        """Validate the times.

        Raises:
            ConfigError: A time is negative.
        """
        for name in self.__slots__:
            _require(getattr(self, name) >= 0, "must not be negative", where=f"pace.{name}")

    @property
    def enabled(self) -> bool:
        """Return whether any part has a pace."""
        return any(getattr(self, name) > 0 for name in self.__slots__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The input pipeline."""

    num_workers: int = 0
    """Worker processes of the DataLoader; 0 makes the data in the training process."""

    def __post_init__(self) -> None:
        """Validate the count.

        Raises:
            ConfigError: The number of workers is negative.
        """
        _require(self.num_workers >= 0, "must not be negative", where="data.num_workers")


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
    faults: tuple[FaultSpec, ...] = ()
    """Faults to inject, with their step windows."""

    def __post_init__(self) -> None:
        """Validate what several sections decide together.

        Raises:
            ConfigError: The mesh does not divide the model or the batch, or a
                setting needs another device.
        """
        self._check_mesh()
        self.schedule.check_mesh(self.layout)
        self.schedule.check_layers(self.layout, self.model.layers)
        self._check_device()
        self.data_parallel.check_replicas(self.layout.dp)
        self._check_full_sharding()
        for fault in self.faults:
            fault.check_mesh(self.layout)

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
        _require(
            self.model.family == "gpt",
            f"a {self.model.family} model can be planned, but not trained here",
            where="model.family",
            remedy="Add --dry-run, or set it to gpt",
        )

    def _check_mesh(self) -> None:
        check_splits(
            self.layout, self.model, tensor=self.tensor, context=self.context, moe=self.moe
        )
        parts = self.layout.dp * self.schedule.microbatches
        _require(
            self.train.global_batch % parts == 0,
            f"{self.train.global_batch} sequences do not divide into "
            f"layout.dp x schedule.microbatches = {parts}",
            where="train.global_batch",
            remedy=f"Use a multiple of {parts}",
        )

    def _check_full_sharding(self) -> None:
        whole = self.data_parallel.zero < 3
        _require(
            whole or not self.model.tied,
            "shards embedding and head one by one, and here they are one weight",
            where="data_parallel.zero",
            remedy="Set it to 2 or less, or model.tied to false",
        )
        _require(
            whole or (self.layout.cp == self.layout.ep == 1 and not self.tensor.sequence_parallel),
            "sums all gradients over one group, and context, expert and sequence parallelism "
            "have several",
            where="data_parallel.zero",
            remedy="Set it to 2 or less",
        )

    def _check_device(self) -> None:
        on_cpu = self.device.kind == "cpu"
        _require(
            on_cpu or not self.pace.enabled,
            "emulates devices on a CPU and would only delay a real one",
            where="pace",
            remedy="Set every pace to 0 with device.kind = cuda",
        )
        _require(
            on_cpu or all(fault.works_on_cuda for fault in self.faults),
            "slow_link and slow_rank:mode=compute act on the host and would not slow a GPU",
            where="faults",
            remedy="Use slow_rank:mode=sleep with device.kind = cuda",
        )
