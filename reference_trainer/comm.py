"""Every collective that the trainer issues, in one place.

A collective is always issued asynchronously and then waited for: the wait is
what a rank loses to communication, and the only place where an observer, the
pace and an injected slow link can see or change it. On NCCL ``wait`` orders the
compute stream after the communication and returns at once.

Sends and receives between pipeline stages belong to torch's pipeline runtime
and do not pass through here.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from meshscope.probe.clock import now_ns
from meshscope.probe.schema.terms import Axis

from .mesh import MeshGroup


class Hold(Protocol):
    """A collective that is kept from completing before its time."""

    def finish(self) -> None:
        """Return when its time has come."""


class Links(Protocol):
    """How much slower than the machine the links are."""

    def before(self, axis: Axis) -> None:
        """Be told that a collective is about to be issued."""

    def hold(self, work: dist.Work, axis: Axis, *, issue_ns: int, size_bytes: int) -> Hold | None:
        """Keep a collective from completing too early; None where nothing holds it."""


class PerfectLinks:
    """Links that add nothing."""

    def before(self, axis: Axis) -> None:
        """Let it be issued."""

    def hold(self, work: dist.Work, axis: Axis, *, issue_ns: int, size_bytes: int) -> None:
        """Hold nothing."""


class Pending:
    """A collective on its way.

    Args:
        work: torch's handle; None where a group of one had nothing to do.
        hold: What keeps it from completing on a slow link.
        comm: Where the waited time is counted.
    """

    def __init__(self, work: dist.Work | None, hold: Hold | None, comm: Communicator) -> None:
        self._work = work
        self._hold = hold
        self._comm = comm

    def wait(self) -> None:
        """Return when the result is there, on a slow link not before its time."""
        if self._work is None:
            return
        begin_ns = now_ns()
        self._work.wait()
        if self._hold is not None:
            self._hold.finish()
        self._work = None
        self._comm.waited_ns += now_ns() - begin_ns


class Communicator:
    """Issues collectives and counts what this rank waits for them.

    Attributes:
        links: Adds the delay of an injected slow link.
        waited_ns: Time spent in waits since the start, in nanoseconds.
    """

    def __init__(self, links: Links) -> None:
        self.links = links
        self.waited_ns = 0

    def all_reduce(self, tensor: Tensor, group: MeshGroup) -> Pending:
        """Sum a tensor over the group, in place."""
        if group.size == 1:
            return Pending(None, None, self)
        self.links.before(group.axis)
        issue_ns = now_ns()
        work = dist.all_reduce(tensor, group=group.handle, async_op=True)
        size_bytes = tensor.numel() * tensor.element_size()
        hold = self.links.hold(work, group.axis, issue_ns=issue_ns, size_bytes=size_bytes)
        return Pending(work, hold, self)

    def share_from_rank_zero(self, value: int, device: torch.device) -> int:
        """Return rank 0's value on every rank; the others' values are ignored."""
        tensor = torch.tensor([value], dtype=torch.int64, device=device)
        dist.broadcast(tensor, src=0, async_op=True).wait()
        return int(tensor.item())

    def share_own(
        self, source: int, values: tuple[int, int], device: torch.device
    ) -> tuple[int, int]:
        """Return the values of one rank on every rank; the others' values are ignored."""
        tensor = torch.tensor(values, dtype=torch.int64, device=device)
        dist.broadcast(tensor, src=source, async_op=True).wait()
        first, second = tensor.tolist()
        return first, second

    def read_sum(self, tensor: Tensor) -> float:
        """Sum one number over all ranks and read it, which waits for everybody and the device."""
        total = tensor.detach().clone()
        begin_ns = now_ns()
        dist.all_reduce(total, async_op=True).wait()
        self.waited_ns += now_ns() - begin_ns
        return float(total.item())
