"""What a rank keeps in memory: phase by phase, and in a simulation storage by storage.

A step has three phases: ``weights`` (until they are whole and the gradients are
zero), ``pipeline`` (all forwards and backwards) and ``update`` (sums, clipping,
optimizer). At the end of each, one line goes to ``memory.rankNNNNN.jsonl``.
Sizes are counted from the tensors that the trainer keeps; on a GPU the figures
of torch's allocator, which know everything else too, stand beside them.

``LiveStorage`` follows every storage from birth to death. A dispatch mode sees each operator's results, notes storages that it has not seen
before, and hears from their finalizers when they die. It needs no allocator, so
it works where tensors have shapes and no memory. Each storage carries a label,
by default that of the time when it was made, so that a peak can be taken apart.
"""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..compat import TorchDispatchMode, tree_iter
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


@dataclass(frozen=True, slots=True)
class Origin:
    """Which operator made a storage."""

    operator: str
    """Its name, without the overload."""
    shape: tuple[int, ...]
    """Of the tensor that it made."""


@dataclass(slots=True)
class _Storage:
    """One living storage."""

    size_bytes: int
    label: str
    origin: Origin


class LiveStorage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that live, by label.

    Attributes:
        label: What storages made from now on are labelled as.
        by_label: Bytes that live now.
        peak_bytes: The most at once since ``start_phase``.
        peak_by_label: Bytes by label at that moment.
    """

    def __init__(self, label: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.label = label
        self.by_label: Counter[str] = Counter()
        self.peak_bytes = 0
        self.peak_by_label: Mapping[str, int] = {}
        self._live: dict[int, _Storage] = {}
        self._total_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Return the bytes that live now."""
        return self._total_bytes

    def start_phase(self) -> None:
        """Look for the peak from here on."""
        self.peak_bytes = self._total_bytes
        self.peak_by_label = dict(self.by_label)

    def relabel(self, tensors: Iterable[Tensor], label: str) -> None:
        """Give the storages of some tensors another label."""
        for tensor in tensors:
            storage = self._live.get(id(local_part(tensor).untyped_storage()))
            if storage is not None and storage.label != label:
                self.by_label[storage.label] -= storage.size_bytes
                self.by_label[label] += storage.size_bytes
                storage.label = label

    def made_by(self, label: str) -> dict[Origin, tuple[int, int]]:
        """Return number and bytes of the living storages with a label, by what made them."""
        found: dict[Origin, tuple[int, int]] = {}
        for storage in self._live.values():
            if storage.label == label:
                number, size_bytes = found.get(storage.origin, (0, 0))
                found[storage.origin] = number + 1, size_bytes + storage.size_bytes
        return found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch operators, and storages that are resized behind their back, as FSDP2 does."""
        resize = torch.UntypedStorage.resize_

        def resize_and_count(storage: torch.UntypedStorage, size_bytes: int) -> Any:
            result = resize(storage, size_bytes)
            self._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize_and_count  # type: ignore[method-assign, assignment]
        try:
            with self:
                yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator and note the storages of its results."""
        results = func(*args, **(kwargs or {}))
        for tensor in tree_iter(results):
            if isinstance(tensor, Tensor):
                self._note(tensor, func)
        return results

    def _note(self, tensor: Tensor, func: Any) -> None:
        """Count a storage that was not seen before."""
        # A distributed tensor is a shell as large as the whole, around the part that is here.
        storage = local_part(tensor).untyped_storage()
        key = id(storage)
        if key in self._live:
            return
        origin = Origin(func.overloadpacket.__name__, tuple(tensor.shape))
        self._live[key] = _Storage(0, self.label, origin)
        weakref.finalize(storage, self._died, key).atexit = False
        self._grow(self._live[key], storage.nbytes())

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """Count what a storage has become."""
        known = self._live.get(id(storage))
        if known is not None:
            self._grow(known, storage.nbytes())

    def _died(self, key: int) -> None:
        """Count a storage no more."""
        self._grow(self._live.pop(key), 0)

    def _grow(self, storage: _Storage, size_bytes: int) -> None:
        """Change the size of a storage, and note a new peak."""
        grown = size_bytes - storage.size_bytes
        storage.size_bytes = size_bytes
        self.by_label[storage.label] += grown
        self._total_bytes += grown
        if self._total_bytes > self.peak_bytes:
            self.peak_bytes = self._total_bytes
            self.peak_by_label = dict(self.by_label)
