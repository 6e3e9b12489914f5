"""What a rank keeps in memory, phase by phase.

A step has three phases: ``weights`` (until they are whole and the gradients are
zero), ``pipeline`` (all forwards and backwards) and ``update`` (sums, clipping,
optimizer). At the end of each, one line goes to ``memory.rankNNNNN.jsonl``.
Sizes are counted from the tensors that the trainer keeps; on a GPU the figures
of torch's allocator, which know everything else too, stand beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..model.activation_memory import ActivationStore
from ..out_files import start_file, written


class HeldBytes(NamedTuple):
    """What a rank keeps from step to step, in bytes."""

    weights_bytes: int
    """The model's weights."""
    masters_bytes: int
    """fp32 masters, where they are not the model's weights themselves."""
    gradients_bytes: int
    """Gradient buffers."""
    optimizer_bytes: int
    """State of the optimizer, without the masters; AdamW has it after the first step."""


class KeptTensors(NamedTuple):
    """What a rank keeps from step to step; the tensors behind ``HeldBytes``."""

    weights: Sequence[Tensor]
    masters: Sequence[Tensor]
    gradients: Sequence[Tensor]
    optimizer: Sequence[Tensor]

    def sizes(self) -> HeldBytes:
        """Return the bytes of each."""
        return HeldBytes(*(tensor_bytes(tensors) for tensors in self))


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of this rank's part of some tensors."""
    parts = [local_part(tensor) for tensor in tensors]
    return sum(part.numel() * part.element_size() for part in parts)


def optimizer_state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return an optimizer's state on this rank, step counters left out."""
    return [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim() > 0
    ]


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, which is itself where it is not distributed."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


class Account(Protocol):
    """Watches the phases of a step; ``MemoryAccount`` and ``NoAccount`` are the two of them."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Watch one phase."""

    def end_step(self) -> None:
        """Write down the step's phases."""


class NoAccount:
    """Watches nothing."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Watch nothing."""
        return nullcontext()

    def end_step(self) -> None:
        """Write nothing."""


class MemoryAccount:
    """Notes what is kept at the end of each phase.

    Args:
        path: File for the lines; an older one is replaced.
        device: The rank's device.
        store: Holds the activations.
        held: Returns what else the rank keeps.
        first_step: Step of the first phases.
    """

    def __init__(
        self,
        path: Path,
        device: torch.device,
        store: ActivationStore,
        held: Callable[[], HeldBytes],
        *,
        first_step: int = 0,
    ) -> None:
        self._path = path
        self._device = device
        self._store = store
        self._held = held
        self._step = first_step
        self._lines: list[str] = []
        start_file(path)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note what is kept when the phase ends, and the peaks within it."""
        self._store.start_phase()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        yield
        record: dict[str, int | str | None] = {
            "step": self._step,
            "phase": name,
            **self._held()._asdict(),
            "activations_bytes": self._store.device_bytes,
            "activations_peak_bytes": self._store.device_peak_bytes,
            "offloaded_peak_bytes": self._store.host_peak_bytes,
            "allocated_bytes": None,
            "allocated_peak_bytes": None,
        }
        if self._device.type == "cuda":
            # The allocator's own counters: reading them does not wait for the device.
            record["allocated_bytes"] = torch.cuda.memory_allocated(self._device)
            record["allocated_peak_bytes"] = torch.cuda.max_memory_allocated(self._device)
        self._lines.append(json.dumps(record) + "\n")

    def end_step(self) -> None:
        """Write down the step's phases."""
        with written(self._path), self._path.open("a", encoding="utf-8") as file:
            file.writelines(self._lines)
        self._lines.clear()
        self._step += 1


def account_path(out: Path, rank: int) -> Path:
    """Return where a rank writes its account."""
    return out / f"memory.rank{rank:05d}.jsonl"
