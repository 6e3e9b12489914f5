"""Data parallelism: gradients are summed over the replicas while backward still runs.

Gradients live in flat buckets, filled from the last layer back, since backward
reaches the last layer first. As soon as the last microbatch's backward has
added to every gradient of a bucket, the bucket's all-reduce starts; ``finish``
waits for all of them before the optimizer::

    backward of the last microbatch   |-- layer 3 --|-- layer 2 --|-- layer 1 --|
    all-reduce                                      |-- bucket 0 --|-- bucket 1 --|
    finish                                                                      |--|
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from .comm import Communicator, Pending
from .mesh import MeshGroup


class GradientReducer:
    """Sums the gradients of some parameters over a group.

    Losses are scaled by the number of replicas before backward, so the sum is
    the gradient of the global mean. Gradients become views into the buckets:
    zero them with ``start_step``, never with ``set_to_none``.

    Args:
        parameters: In model order.
        group: The replicas.
        comm: Issues the all-reduces.
        backwards: Backwards per step that add to each gradient: the microbatches. None
            where autograd does not tell of each, as under split backwards: then all
            buckets start in ``finish``.
        bucket_bytes: Size at which a bucket is closed.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: MeshGroup,
        comm: Communicator,
        *,
        backwards: int | None,
        bucket_bytes: int,
    ) -> None:
        self._group = group
        self._comm = comm
        self._has_hooks = backwards is not None
        self._buckets: list[_Bucket] = []
        backwards_first = list(parameters)[::-1]
        for index, members in enumerate(_split(backwards_first, bucket_bytes)):
            self._buckets.append(_Bucket(members, backwards or 0))
            for parameter in members if self._has_hooks else ():
                hook = partial(self._accumulated, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._launched = 0
        self._pending: list[Pending] = []

    @property
    def bucket_count(self) -> int:
        """Return the number of buckets, which is that of all-reduces per step."""
        return len(self._buckets)

    def start_step(self) -> None:
        """Zero the gradients and count backwards from the beginning."""
        self._launched = 0
        for bucket in self._buckets:
            bucket.start_step()

    def finish(self) -> None:
        """Return when every gradient is the sum over the group.

        Raises:
            RuntimeError: A gradient got fewer backwards than the step should have,
                so its bucket never started.
        """
        if not self._has_hooks:
            for bucket in self._buckets:
                self._start(bucket)
        if self._launched < len(self._buckets):
            raise RuntimeError(
                f"{len(self._buckets) - self._launched} of {len(self._buckets)} gradient buckets "
                "are incomplete: a parameter took no part in some microbatch's backward"
            )
        for pending in self._pending:
            pending.wait()
        self._pending.clear()

    def _accumulated(self, index: int, _parameter: Tensor) -> None:
        """Count one backward of one parameter, and start what became complete.

        Buckets start in the same order on every rank, whatever order autograd
        finishes them in: ranks that disagree on the order would wait for ever.
        """
        self._buckets[index].missing -= 1
        while self._launched < len(self._buckets) and not self._buckets[self._launched].missing:
            self._start(self._buckets[self._launched])

    def _start(self, bucket: _Bucket) -> None:
        self._pending.append(self._comm.all_reduce(bucket.flat, self._group))
        self._launched += 1


class _Bucket:
    """One flat buffer and the parameters whose gradients lie in it.

    Attributes:
        flat: The gradients, one after the other.
        missing: Additions to come in this step before it is complete.
    """

    def __init__(self, members: list[nn.Parameter], backwards: int) -> None:
        self._additions = len(members) * backwards
        self.missing = 0
        self.flat = torch.zeros(
            sum(parameter.numel() for parameter in members),
            dtype=members[0].dtype,
            device=members[0].device,
        )
        sizes = [parameter.numel() for parameter in members]
        for parameter, part in zip(members, torch.split(self.flat, sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def start_step(self) -> None:
        """Zero the gradients."""
        self.flat.zero_()
        self.missing = self._additions


def _split(parameters: list[nn.Parameter], bucket_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Yield consecutive parameters whose gradients fit into one bucket."""
    members: list[nn.Parameter] = []
    size_bytes = 0
    for parameter in parameters:
        grad_bytes = parameter.numel() * parameter.element_size()
        if members and size_bytes + grad_bytes > bucket_bytes:
            yield members
            members, size_bytes = [], 0
        members.append(parameter)
        size_bytes += grad_bytes
    if members:
        yield members
