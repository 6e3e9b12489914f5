"""Where a run executes, and how fast an emulated device is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshscope.probe.schema.message import message

from .checks import in_range, require

_MOST_TIMEOUT_S = 1e9
"""Thirty years, which torch can still count in milliseconds."""
_MOST_PACE_MS = 1e9


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
