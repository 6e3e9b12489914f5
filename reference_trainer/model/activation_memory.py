"""What autograd keeps for the backward: less of it, elsewhere, and how much it is.

What recomputation leaves of it is in ``recomputation.py``.

``offload`` copies what is kept to host memory and back (Rhu et al. 2016, arXiv
1602.08124, section 3). On a GPU the copies are queued on the compute stream: the
host never waits, and they do not overlap with compute. On a CPU both sides are
the same memory, and only the account is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from .pace import PartRunner
from .recomputation import recomputed

_LEAST_OFFLOADED_BYTES = 1024
"""Smaller tensors stay: a copy would cost more than their memory is worth."""


class ActivationStore:
    """Holds what autograd keeps, on the device or on the host, and counts it.

    Memory that several tensors share counts once. Weights do not count: they are
    there anyway.

    Args:
        offload: Keep tensors of at least 1 KiB on the host.

    Attributes:
        device_bytes: Kept on the device now.
        host_bytes: Kept on the host now.
        device_peak_bytes: The most on the device since ``start_phase``.
        host_peak_bytes: The most on the host since ``start_phase``.
    """

    def __init__(self, *, offload: bool) -> None:
        self._offload = offload
        self._holders: dict[int, int] = {}
        self.device_bytes = 0
        self.host_bytes = 0
        self.device_peak_bytes = 0
        self.host_peak_bytes = 0

    def start_phase(self) -> None:
        """Look for peaks from here on."""
        self.device_peak_bytes = self.device_bytes
        self.host_peak_bytes = self.host_bytes

    @contextmanager
    def keeping(self, part: nn.Module) -> Iterator[None]:
        """Hold what the forward of a part of the model keeps."""
        own = (*part.parameters(), *part.buffers())
        weights = {tensor.untyped_storage().data_ptr() for tensor in own}

        def pack(tensor: Tensor) -> _KeptOnDevice | _KeptOnHost | Tensor:
            if tensor.untyped_storage().data_ptr() in weights:
                return tensor
            size_bytes = tensor.numel() * tensor.element_size()
            if self._offload and size_bytes >= _LEAST_OFFLOADED_BYTES:
                return _KeptOnHost(tensor, self)
            return _KeptOnDevice(tensor, self)

        with saved_tensors_hooks(pack, _unpack):
            yield

    def add(self, storage: int, size_bytes: int) -> None:
        """Count one more holder of some memory on the device."""
        self._holders[storage] = self._holders.get(storage, 0) + 1
        if self._holders[storage] == 1:
            self.device_bytes += size_bytes
            self.device_peak_bytes = max(self.device_peak_bytes, self.device_bytes)

    def remove(self, storage: int, size_bytes: int) -> None:
        """Count one holder less."""
        self._holders[storage] -= 1
        if not self._holders[storage]:
            del self._holders[storage]
            self.device_bytes -= size_bytes

    def add_host(self, size_bytes: int) -> None:
        """Count bytes that went to the host, or with a minus sign were freed there."""
        self.host_bytes += size_bytes
        self.host_peak_bytes = max(self.host_peak_bytes, self.host_bytes)


class _KeptOnDevice:
    """A tensor that autograd will ask for; gone when autograd drops it."""

    def __init__(self, tensor: Tensor, store: ActivationStore) -> None:
        self._tensor = tensor
        self._store = store
        memory = tensor.untyped_storage()
        self._memory = memory.data_ptr(), memory.nbytes()
        store.add(*self._memory)

    def __del__(self) -> None:
        self._store.remove(*self._memory)

    def get(self) -> Tensor:
        """Return the tensor."""
        return self._tensor


class _KeptOnHost:
    """Such a tensor that waits on the host."""

    def __init__(self, tensor: Tensor, store: ActivationStore) -> None:
        self._device = tensor.device
        self._store = store
        # Only from pinned memory does a copy to a GPU run without the host.
        self._host = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._host.copy_(tensor, non_blocking=True)
        self._size_bytes = self._host.numel() * self._host.element_size()
        store.add_host(self._size_bytes)

    def __del__(self) -> None:
        self._store.add_host(-self._size_bytes)

    def get(self) -> Tensor:
        """Return the tensor, on its device again."""
        return self._host.to(self._device, non_blocking=True)


def _unpack(kept: _KeptOnDevice | _KeptOnHost | Tensor) -> Tensor:
    """Return what was packed."""
    return kept if isinstance(kept, Tensor) else kept.get()


class ActivationRunner:
    """Runs the parts of a stage and decides what is kept of them.

    Args:
        inner: Runs them, with a pace or without.
        full: Run blocks again in the backward.
        store: Holds what is kept; None leaves it to autograd.
    """

    def __init__(self, inner: PartRunner, *, full: bool, store: ActivationStore | None) -> None:
        self._inner = inner
        self._full = full
        self._store = store

    def embed(self, part: nn.Module, ids: Tensor) -> Tensor:
        """Run the embedding: ids (B, T) to hidden (B, S, D)."""
        return self._keep(self._inner.embed, part, ids)

    def layer(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run one transformer block: hidden (B, S, D) to hidden (B, S, D)."""
        return self._keep(self._layer, part, hidden)

    def head(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run the final norm and the output head: hidden (B, S, D) to logits (B, T, U)."""
        return self._keep(self._inner.head, part, hidden)

    def _layer(self, part: nn.Module, hidden: Tensor) -> Tensor:
        if self._full:
            return recomputed(self._inner.layer, part, hidden)
        return self._inner.layer(part, hidden)

    def _keep(
        self, run: Callable[[nn.Module, Tensor], Tensor], part: nn.Module, tensor: Tensor
    ) -> Tensor:
        if self._store is None:
            return run(part, tensor)
        with self._store.keeping(part):
            return run(part, tensor)
