"""Every collective that the trainer issues, in one place.

A collective is always issued asynchronously and then waited for: the wait is
what a rank loses to communication, and the only place where an observer and the
pace can see it. On NCCL ``wait`` orders the
compute stream after the communication and returns at once.

Sends and receives between pipeline stages belong to torch's pipeline runtime
and do not pass through here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from meshscope.probe.clock import now_ns
from meshscope.probe.schema.terms import Axis

from ..compat import all_gather_single, reduce_scatter_single
from .host_staging import StagedWork, host_like, to_host
from .mesh import MeshGroup


class Links(Protocol):
    """What happens to the exchanges of a rank before they are issued."""

    def before(self, axis: Axis) -> None:
        """Be told that an exchange is about to be issued."""


class PerfectLinks:
    """Links over which everything can be issued."""

    def before(self, axis: Axis) -> None:
        """Let it be issued."""


class Pending:
    """An operation on its way.

    Args:
        works: torch's handles; none where a group of one had nothing to do.
        comm: Where the waited time is counted.
    """

    def __init__(self, works: Sequence[dist.Work], comm: Communicator) -> None:
        self._works = works
        self._comm = comm

    @property
    def work(self) -> dist.Work | None:
        """Return torch's handle of what was not yet waited for, for code of torch that asks."""
        return self._works[0] if self._works else None

    def wait(self) -> None:
        """Return when the result is there."""
        if not self._works:
            return
        begin_ns = now_ns()
        for work in self._works:
            work.wait()
        self._works = ()
        self._comm.waited_ns += now_ns() - begin_ns


class Communicator:
    """Issues collectives and counts what this rank waits for them.

    Args:
        links: Is told of each exchange before it is issued.
        staged: Operations that go through host memory; see ``host_staging``.

    Attributes:
        links: Is told of each exchange before it is issued.
        waited_ns: Time spent in waits since the start, in nanoseconds.
        collectives: How many were issued since the start, by name and axis.
        payload_bytes: The payload of all of them, by name and axis: of each the larger of what
            goes in and what comes out.
    """

    def __init__(self, links: Links, staged: Collection[str] = ()) -> None:
        self.links = links
        self._staged = staged
        self.waited_ns = 0
        self.collectives: Counter[tuple[str, Axis]] = Counter()
        self.payload_bytes: Counter[tuple[str, Axis]] = Counter()

    def all_reduce(
        self, tensor: Tensor, group: MeshGroup, *, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> Pending:
        """Sum a tensor of any shape over the group, or reduce it by another operation, in place."""
        if group.size == 1:
            return self._nothing()
        start = partial(dist.all_reduce, op=op)
        return self._issue("all_reduce", group, start, (tensor,))

    def all_gather(self, shard: Tensor, group: MeshGroup) -> tuple[Tensor, Pending]:
        """Return the shards of all members, (group, ...), and when they are there."""
        whole = shard.new_empty(group.size, *shard.shape)
        return whole, self.all_gather_into(whole.flatten(0, 1), shard.contiguous(), group)

    def all_gather_into(self, whole: Tensor, shard: Tensor, group: MeshGroup) -> Pending:
        """Put the shards (P, ...) of all members, one after the other, into (group P, ...).

        ``shard`` may be this member's part of ``whole``.
        """
        if group.size == 1:
            whole.copy_(shard)
            return self._nothing()
        return self._issue("all_gather", group, all_gather_single, (whole, shard))

    def reduce_scatter(self, whole: Tensor, group: MeshGroup) -> tuple[Tensor, Pending]:
        """Return this member's part of the sum of (group, ...), and when it is there."""
        shard = whole.new_empty(whole.shape[1:])
        return shard, self.reduce_scatter_into(shard, whole.contiguous().flatten(0, 1), group)

    def reduce_scatter_into(self, shard: Tensor, whole: Tensor, group: MeshGroup) -> Pending:
        """Put this member's part of the sum of (group P, ...) into (P, ...)."""
        if group.size == 1:
            shard.copy_(whole)
            return self._nothing()
        return self._issue("reduce_scatter", group, reduce_scatter_single, (shard, whole))

    def all_to_all(
        self,
        sent: Tensor,
        group: MeshGroup,
        *,
        sent_rows: Sequence[int] | None = None,
        received_rows: Sequence[int] | None = None,
    ) -> tuple[Tensor, Pending]:
        """Send consecutive rows of a tensor to each member, and receive theirs.

        Args:
            sent: (rows, ...), those for the first member first.
            group: The members.
            sent_rows: Rows for each member; None: all the same.
            received_rows: Rows from each member; None: all the same.

        Returns:
            The received rows, those of the first member first, and when they are there.
        """
        if group.size == 1:
            return sent, self._nothing()
        rows = len(sent) if received_rows is None else sum(received_rows)
        received = sent.new_empty(rows, *sent.shape[1:])
        start = partial(
            dist.all_to_all_single,
            output_split_sizes=None if received_rows is None else list(received_rows),
            input_split_sizes=None if sent_rows is None else list(sent_rows),
        )
        return received, self._issue("all_to_all", group, start, (received, sent.contiguous()))

    def pass_on(self, tensor: Tensor, group: MeshGroup) -> tuple[Tensor, Pending]:
        """Send a tensor to the next member of a ring, and receive the previous one's, shaped alike."""
        if group.size == 1:
            return tensor, self._nothing()
        self.links.before(group.axis)
        self._count("pass_on", tensor, group)
        received = torch.empty_like(tensor)
        after = group.ranks[(group.position + 1) % group.size]
        before = group.ranks[group.position - 1]
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, after, group.handle),
                dist.P2POp(dist.irecv, received, before, group.handle),
            ]
        )
        return received, Pending(works, self)

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

    def sum_of_all(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks of the job, which waits for everybody."""
        total = tensor.detach().clone()
        begin_ns = now_ns()
        dist.all_reduce(total, async_op=True).wait()
        self.waited_ns += now_ns() - begin_ns
        return total

    def _nothing(self) -> Pending:
        """Return what is complete already."""
        return Pending((), self)

    def _count(self, name: str, payload: Tensor, group: MeshGroup) -> None:
        """Count an exchange and its payload."""
        self.collectives[name, group.axis] += 1
        self.payload_bytes[name, group.axis] += payload.nbytes

    def _issue(
        self,
        name: str,
        group: MeshGroup,
        start: Callable[..., dist.Work],
        tensors: tuple[Tensor, ...],
    ) -> Pending:
        """Start a collective of torch.distributed.

        Args:
            name: What it is counted as, and staged as.
            group: The members.
            start: The function.
            tensors: Its tensors, the result first; one where it works in place.
        """
        self.links.before(group.axis)
        self._count(name, max(tensors, key=Tensor.numel), group)
        if name in self._staged:
            host = (*(host_like(result) for result in tensors[:-1]), to_host(tensors[-1]))
            inner = start(*host, group=group.handle, async_op=True)
            work: dist.Work = StagedWork(inner, host, tensors[0])
        else:
            work = start(*tensors, group=group.handle, async_op=True)
        return Pending((work,), self)
