"""How much memory the tensors of a program hold, as it runs: every storage from birth to death.

A dispatch mode sees each operator's results, notes storages that it has not seen
before, and hears from their finalizers when they die. It needs no allocator, so
it works where tensors have shapes and no memory. Each storage carries a label,
by default that of the time when it was made, so that a peak can be taken apart.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..compat import TorchDispatchMode, tree_iter
from .memory_account import local_part


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
