"""Operations that a backend has no form of for a device's memory, by way of host memory.

gloo moves host memory. Of a GPU's memory it knows how to sum and to broadcast;
for the rest, what is sent is copied to the host before the operation, and what
came is copied back when it is waited for::

    issue   copy to pinned memory, wait for the copy | operation on host memory starts
    wait    operation ends | copy to the device is queued on the current stream

The host waits once, at the issue, for that one copy: gloo may read the memory
from then on. The transfer itself goes on in the background, as without staging.
With this, several ranks can share one GPU, which NCCL refuses.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..compat import process_group
from ..config.sections import DeviceConfig

OPERATIONS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "message"})
"""What can be staged; a message is a send or a receive."""

WITHOUT_FORM = {("gloo", "cuda"): OPERATIONS - {"all_reduce"}}
"""Operations that a backend has no form of, by backend and kind of device (table of backends in
the documentation of torch.distributed)."""


def staged_operations(device: DeviceConfig, *, held_back: bool = False) -> frozenset[str]:
    """Return the operations that go through host memory.

    Args:
        device: Where the run executes.
        held_back: A slow link holds operations back, which it can do in host memory only.

    >>> sorted(staged_operations(DeviceConfig(kind="cuda", backend="gloo")))
    ['all_gather', 'all_to_all', 'message', 'reduce_scatter']
    >>> sorted(staged_operations(DeviceConfig(kind="cuda", backend="nccl")))
    []
    """
    if device.staging == "always" or (held_back and device.kind == "cuda"):
        return OPERATIONS
    return WITHOUT_FORM.get((device.backend, device.kind), frozenset())


def to_host(tensor: Tensor) -> Tensor:
    """Return a copy in host memory, ready to be read; for a GPU's tensor it is pinned."""
    host = host_like(tensor)
    host.copy_(tensor.detach(), non_blocking=True)
    if tensor.is_cuda:
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        copied.synchronize()
    return host


def host_like(tensor: Tensor) -> Tensor:
    """Return empty host memory for a tensor; only pinned memory is copied without the host."""
    return torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=tensor.is_cuda)


class StagedWork(dist.Work):
    """An operation on host memory whose result is wanted elsewhere.

    Args:
        inner: The operation.
        host: Its memory, which has to live as long as it runs.
        result: Where its result is wanted; None for a send.
        done: Is told when it has been waited for.
    """

    def __init__(
        self,
        inner: dist.Work,
        host: tuple[Tensor, ...],
        result: Tensor | None,
        done: Callable[[StagedWork], None] = lambda _work: None,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._host = host
        self._result = result
        self._done = done

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the operation is over and the copy of its result is queued."""
        finished = self._inner.wait() if timeout is None else self._inner.wait(timeout)
        if self._result is not None:
            self._result.detach().copy_(self._host[0], non_blocking=True)
            self._result = None
        self._done(self)
        return finished

    def is_completed(self) -> bool:
        """Return whether ``wait`` would return at once."""
        return self._inner.is_completed()

    def get_future(self) -> Any:
        """Return what is set when the operation on host memory is over."""
        return self._inner.get_future()


class Message(NamedTuple):
    """A message that is being received."""

    group: dist.ProcessGroup
    """Its group."""
    sender: int
    """Who sends it, by the place in the group."""
    size_bytes: int
    """Payload."""


def as_it_is(work: dist.Work, _message: Message) -> dist.Work:
    """Return a receive unchanged."""
    return work


class StagedMessages:
    """Sends and receives through host memory, whoever issues them.

    torch's pipeline runtime issues those between stages, so the two operators
    themselves are replaced, underneath whatever observes them.

    Args:
        device_type: Kind of device whose memory is staged.

    Attributes:
        arriving: Takes each receive of host memory and returns what is waited for in its place.
    """

    def __init__(self, device_type: str) -> None:
        self._key = device_type.upper()
        self.arriving: Callable[[dist.Work, Message], dist.Work] = as_it_is
        self._library: Any = None
        # torch holds only the part of a work that is no Python object.
        self._running: set[StagedWork] = set()

    def install(self) -> None:
        """Replace the operators."""
        self._library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            # torch says that a kernel is overridden, which is what is wanted.
            warnings.simplefilter("ignore", UserWarning)
            self._library.impl("send", self._send, self._key, allow_override=True)
            self._library.impl("recv_", self._receive, self._key, allow_override=True)

    def remove(self) -> None:
        """Give the operators their own kernels back."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _send(self, tensors: list[Tensor], boxed_group: Any, receiver: int, tag: int) -> Any:
        (tensor,) = tensors
        host = to_host(tensor)
        work = _host_backend(boxed_group).send([host], receiver, tag)
        return self._start(work, host, None)

    def _receive(self, tensors: list[Tensor], boxed_group: Any, sender: int, tag: int) -> Any:
        (tensor,) = tensors
        host = host_like(tensor)
        work = _host_backend(boxed_group).recv([host], sender, tag)
        message = Message(process_group(boxed_group), sender, host.nbytes)
        return self._start(self.arriving(work, message), host, tensor)

    def _start(self, work: dist.Work, host: Tensor, result: Tensor | None) -> Any:
        staged = StagedWork(work, (host,), result, self._running.discard)
        self._running.add(staged)
        return staged.boxed()


def _host_backend(boxed_group: Any) -> Any:
    """Return the backend of a group for host memory."""
    return process_group(boxed_group)._get_backend(torch.device("cpu"))
