"""What autograd keeps for the backward: less of it, elsewhere, and how much it is.

``offload`` copies what is kept to host memory and back (Rhu et al. 2016, arXiv
1602.08124, section 3). On a GPU the copies are queued on the compute stream: the
host never waits, and they do not overlap with compute. On a CPU both sides are
the same memory, and only the account is real.

Recomputed blocks, or parts of them, run again in the backward in place of keeping what it needs.
``recompute = full`` keeps the input of each block and runs the block again in
the backward up to its last product, the collectives before that included (Chen
et al. 2016, arXiv 1604.06174). ``selective`` runs again what lies before each
row-parallel layer: norm, first linear layer, attention or activation. It keeps
the residual stream and the inputs of the row-parallel layers, and repeats no
all-reduce of tensor parallelism (after Korthikanti et al. 2022, arXiv
2205.05198, section 5, which repeats the attention only). It does repeat the
all-gathers of sequence parallelism and the exchanges of context parallelism, and
keeps what experts need.

Between the halves of a backward that is split into inputs and weights, what was
repeated for the first stays for the second.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..config.config import TrainerConfig
from .pace import PartRunner


def recompute_frac(config: TrainerConfig) -> float:
    """Return the part of a block's forward that its backward repeats, by multiplications.

    A block has (4 D^2 + 2 D F) per token with D the width and F that of the MLP;
    before its row-parallel layers are (3 D^2 + D F).
    """
    hidden, ffn = config.model.hidden, config.model.ffn
    selective = (3 * hidden + ffn) / (4 * hidden + 2 * ffn)
    return {"none": 0.0, "full": 1.0, "selective": selective}[config.memory.recompute]


def recomputed(run: Callable[..., Tensor], *inputs: object) -> Tensor:
    """Call a function now, and once more in the backward in place of keeping what it needs there.

    ``torch.utils.checkpoint`` repeats it in every run of the autograd engine, and a backward that
    is split into inputs and weights is a run for the inputs and one for each group of weights.
    Here what was repeated stays until the graph lets go of it. Tensors have any shape. The model
    has no dropout, so the state of random generators is left alone.
    """
    repeat = _Repeat(run, inputs)
    with saved_tensors_hooks(repeat.pack, _Repeat.unpack):
        return run(*inputs)


class _Repeat:
    """A call that keeps its inputs, and is made again when the first of its tensors is wanted.

    Args:
        run: The function; it must do the same again.
        inputs: What it is called with.
    """

    def __init__(self, run: Callable[..., Tensor], inputs: Sequence[object]) -> None:
        self._run = run
        self._others = [None if isinstance(one, Tensor) else one for one in inputs]
        # Kept by autograd, so that hooks around this one decide where.
        tensors = (one for one in inputs if isinstance(one, Tensor))
        self._saved = _SavedInputs.apply(torch.empty(0, requires_grad=True), *tensors)  # type: ignore[no-untyped-call]
        self._wanted: list[weakref.ref[_Wanted]] = []

    def pack(self, _tensor: Tensor) -> _Wanted:
        """Keep a place in the order in which the function's tensors are made."""
        wanted = _Wanted(self)
        self._wanted.append(weakref.ref(wanted))
        return wanted

    @staticmethod
    def unpack(wanted: _Wanted) -> Tensor:
        """Return the tensor of a place."""
        if wanted.tensor is None:
            wanted.repeat.make_again()
        assert wanted.tensor is not None  # the function did the same again
        return wanted.tensor

    def make_again(self) -> None:
        """Call the function until all tensors are there that somebody may still ask for."""
        missing = deque(self._wanted)

        def take(tensor: Tensor) -> None:
            wanted = missing.popleft()()
            if wanted is not None:
                wanted.tensor = tensor.detach()
            if not missing:
                raise _AllThereError

        tensors = iter(self._saved.grad_fn.saved_tensors)
        inputs = [next(tensors) if one is None else one for one in self._others]
        with torch.enable_grad(), saved_tensors_hooks(take, _never), suppress(_AllThereError):
            self._run(*(_fresh(one) if isinstance(one, Tensor) else one for one in inputs))


class _Wanted:
    """The place of a tensor that the backward will ask for; it goes when autograd drops it."""

    def __init__(self, repeat: _Repeat) -> None:
        self.repeat = repeat
        self.tensor: Tensor | None = None


class _SavedInputs(torch.autograd.Function):
    """Lets autograd keep some tensors, which are read from its node; it has no backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.detach()


class _AllThereError(Exception):
    """The rest of a repeated call would make nothing that is wanted."""


def _fresh(tensor: Tensor) -> Tensor:
    """Return the same values at the beginning of a graph of their own."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _never(_packed: None) -> Tensor:
    """Be no tensor: nothing goes backward through a repeated call."""
    raise AssertionError


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
