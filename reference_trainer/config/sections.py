"""Sections of a configuration that need no other: model, data, device, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshscope.probe.schema.message import message

from .checks import in_range, require

_MOST_LAYERS = 10_000
"""Ten times the deepest transformer published (arXiv 2203.00555); each is planned by itself."""


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
        in_range(self.layers, 1, _MOST_LAYERS, where="model.layers")
        for name in ("hidden", "ffn", "heads", "vocab", "seq_len"):
            in_range(getattr(self, name), 1, where=f"model.{name}")
        require(
            self.hidden % self.heads == 0,
            message("refused.width_of_heads", hidden=self.hidden, heads=self.heads),
            where="model.hidden",
            remedy=message("advice.width_of_heads"),
        )
        require(
            self.kv_heads == 0 or (self.kv_heads > 0 and self.heads % self.kv_heads == 0),
            message("refused.kv_heads_of_model", kv_heads=self.kv_heads, heads=self.heads),
            where="model.kv_heads",
            remedy=message("advice.divisor_of_heads_or_0"),
        )
        require(
            self.family == "llama" or self.kv_heads in (0, self.heads),
            message("refused.kv_heads_of_family"),
            where="model.kv_heads",
            remedy=message("advice.llama"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The input pipeline."""

    num_workers: int = 0
    """Worker processes of the DataLoader; 0 makes the data in the training process."""
    prefetch_factor: int = 2
    """Batches that each worker loads ahead."""
    text: str = ""
    """A file whose bytes are the tokens; empty: synthetic tokens."""
    documents: Literal["whole", "long_tail"] = "whole"
    """Synthetic sequences of one document each, or packed with documents of long-tailed length."""
    median_document: int = 8
    """Tokens of the median document where they are packed."""
    tell_sequences: bool = True
    """Tell the probe how long the sequences of each microbatch are."""

    def __post_init__(self) -> None:
        """Validate the counts.

        Raises:
            ConfigError: A count is out of range, or a text would be packed.
        """
        in_range(self.num_workers, 0, where="data.num_workers")
        for name in ("prefetch_factor", "median_document"):
            in_range(getattr(self, name), 1, where=f"data.{name}")
        require(
            not (self.text and self.documents == "long_tail"),
            message("refused.synthetic_documents"),
            where="data.documents",
            remedy=message("advice.no_text"),
        )


_MOST_TIMEOUT_S = 1e9
"""Thirty years, which torch can still count in milliseconds."""
_MOST_PACE_MS = 1e9
"""Eleven days: more is a wrong unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Where the run executes."""

    kind: Literal["cpu", "cuda"] = "cpu"
    """Device of parameters and activations; ``cuda`` takes the device of the local rank."""
    backend: Literal["gloo", "nccl"] = "gloo"
    """torch.distributed backend of every process group, whatever the device: ``gloo`` lets several
    ranks share a GPU."""
    staging: Literal["auto", "always"] = "auto"
    """Which operations go through host memory: with gloo those that it has no form of for the
    device, or every one of them."""
    timeout_s: float = 300.0
    """Time after which a collective that does not complete ends the run, in seconds."""

    def __post_init__(self) -> None:
        """Validate the combination.

        Raises:
            ConfigError: nccl was asked for without cuda, or the timeout is out of range.
        """
        require(
            self.backend == "gloo" or self.kind == "cuda",
            message("refused.nccl_on_cpu"),
            where="device.backend",
            remedy=message("advice.cuda_or_gloo"),
        )
        require(
            self.backend == "gloo" or self.staging == "auto",
            message("refused.stages_nothing"),
            where="device.staging",
            remedy=message("advice.auto_or_gloo"),
        )
        in_range(self.timeout_s, 0.001, _MOST_TIMEOUT_S, where="device.timeout_s")


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
            ConfigError: A time is out of range.
        """
        for name in self.__slots__:
            in_range(getattr(self, name), 0, _MOST_PACE_MS, where=f"pace.{name}")

    @property
    def enabled(self) -> bool:
        """Return whether any part has a pace."""
        return any(getattr(self, name) > 0 for name in self.__slots__)


LATEST = "auto"
"""``checkpoint.resume`` that goes on from the latest checkpoint, if there is one."""
AFRESH = "none"
"""``checkpoint.resume`` that starts at step 0 whatever there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Where training is saved, how often, and where it goes on."""

    dir: str = ""
    """Folder of this run's checkpoints, on a file system that all hosts share; empty: none are
    saved."""
    every: int = 0
    """Steps between two checkpoints; 0: only after the last step, which is always saved."""
    mode: Literal["sync", "async"] = "async"
    """``sync`` trains on when everything is on disk; ``async`` when it is copied to host memory,
    and writes behind the next steps."""
    keep: int = 2
    """Newest checkpoints that are kept; older ones are removed."""
    resume: str = LATEST
    """``auto``: the latest checkpoint in ``dir``, if there is one; ``none``: start afresh; else
    the path of a checkpoint, or of a folder of them, which must be there."""

    def __post_init__(self) -> None:
        """Validate the counts.

        Raises:
            ConfigError: A count is out of range, or something is asked for that needs a folder.
        """
        in_range(self.every, 0, where="checkpoint.every")
        in_range(self.keep, 1, where="checkpoint.keep")
        require(
            self.every == 0 or bool(self.dir),
            message("refused.no_folder_to_save_to", every=self.every),
            where="checkpoint.every",
            remedy=message("advice.checkpoint_dir_or_0"),
        )
        require(
            bool(self.resume),
            message("refused.names_nothing"),
            where="checkpoint.resume",
            remedy=message("advice.auto_or_none"),
        )

    @property
    def in_use(self) -> bool:
        """Return whether anything may be saved or resumed."""
        return bool(self.dir) or self.resume not in (LATEST, AFRESH)

    def is_due(self, steps_done: int, steps: int) -> bool:
        """Return whether to save after so many steps.

        Args:
            steps_done: Steps since the start of the training, resumed or not.
            steps: Steps of the whole training.
        """
        if not self.dir:
            return False
        return steps_done == steps or (self.every > 0 and steps_done % self.every == 0)
