"""Data parallelism: gradients are summed over the replicas while backward still runs.

Gradients live in flat buckets, filled from the last layer back, since backward
reaches the last layer first. As soon as every gradient of a bucket is final,
its sum over the replicas starts; ``finish`` waits for all of them before the
optimizer::

    backward of the last microbatch   |-- layer 3 --|-- layer 2 --|-- layer 1 --|
    sum over the replicas                           |-- bucket 0 --|-- bucket 1 --|
    finish                                                                      |--|

A gradient is final when as many backwards as the step has microbatches have
added to it, which autograd's hooks count, or when ``mark_final`` says so. The
latter is for schedules that split the backward: they write gradients without
hooks, and know themselves when the last one is done.

The whole sum (``zero = 0``) is an all-reduce. With sharded optimizer state
(``zero = 1``) a rank needs the sum of its own part only: a reduce-scatter. With
sharded gradients (``zero = 2``) the buckets are reduced after every backward
and freed, and only the part is kept; that costs as many reduce-scatters per
bucket as there are backwards. (Rajbhandari et al. 2020, arXiv 1910.02054,
sections 5.1 and 5.2; bucketing: Li et al. 2020, arXiv 2006.15704, section 3.2.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from ..parallel.mesh import MeshGroup
from .gradient_wire import MASTER_DTYPE, Arrival, Bucket, GradientWire

_FREED_BUCKETS_IN_FLIGHT = 2
"""With sharded gradients, buckets that may wait for their reduce-scatter at once: more would
hold the memory that freeing them is meant to save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionPlan:
    """When buckets are summed, and what of the sum is kept."""

    backwards: int
    """Backwards per step that add to each gradient: the microbatches."""
    zero: Literal[0, 1, 2] = 0
    """0 keeps the whole sum, 1 this rank's part, 2 this rank's part and no whole gradients."""
    hooked: bool = True
    """Whether every backward passes autograd's hooks. A schedule that splits its backwards sets
    this to False; sharded gradients are then reduced once, after the last."""
    dtype: torch.dtype = MASTER_DTYPE
    """What gradients are added up, sent and kept in."""

    @property
    def rounds(self) -> int:
        """Return how often each bucket is reduced per step."""
        return self.backwards if self.zero == 2 and self.hooked else 1


class GradientReducer:
    """Sums the gradients of some parameters over a group.

    Losses are scaled by the number of replicas before backward, so the sum is
    the gradient of the global mean. Zero gradients with ``start_step``, never
    with ``set_to_none``: gradients as precise as their weights are views into the buckets.

    Args:
        buckets: Parameters by bucket, the first to be complete first.
        group: The replicas.
        wire: Sums a bucket over the group.
        plan: When, and what is kept.
        shared: Parameters of several stages, each with backwards of its own: final only
            when they are marked.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        group: MeshGroup,
        wire: GradientWire,
        plan: ReductionPlan,
        shared: Collection[nn.Parameter] = (),
    ) -> None:
        self._wire = wire
        self._plan = plan
        self._gradients = [_BucketGradients(bucket, group, plan) for bucket in buckets]
        self._place: dict[nn.Parameter, tuple[_BucketGradients, int]] = {}
        for gradients in self._gradients:
            for member, parameter in enumerate(gradients.bucket.members):
                self._place[parameter] = gradients, member
                counted = not any(parameter is other for other in shared)
                hook = partial(self._accumulated, gradients, member, int(counted))
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._launched = 0
        self._arrivals: deque[Arrival] = deque()

    @property
    def launches_per_step(self) -> int:
        """Return the number of collectives per step."""
        return len(self._gradients) * self._plan.rounds

    @property
    def sums(self) -> list[Tensor]:
        """Return what ``finish`` leaves of each bucket: whole sums or parts, flat."""
        return [gradients.kept for gradients in self._gradients]

    @property
    def held(self) -> list[Tensor]:
        """Return the buckets and parts that exist now."""
        return [kept for gradients in self._gradients for kept in gradients.held]

    def start_step(self) -> None:
        """Zero the gradients and count backwards from the beginning."""
        self._launched = 0
        for gradients in self._gradients:
            gradients.start_step()

    def collect(self, parameters: Iterable[nn.Parameter]) -> None:
        """Move what a backward without hooks wrote into the buckets.

        Left there, the gradients of weights that are not fp32 would be added up
        in the precision of the weights.
        """
        for parameter in parameters:
            gradients, member = self._place[parameter]
            gradients.collect(member)

    def mark_final(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take the gradients of some parameters as final, and start what became complete.

        A parameter that took no part in a backward, as an expert without a
        token, adds nothing. Calling this for gradients that are known to be
        final changes nothing.
        """
        for parameter in parameters:
            gradients, member = self._place[parameter]
            gradients.close(member)
        self._launch_complete()

    def finish(self) -> None:
        """Return when every gradient is the sum over the group.

        Raises:
            RuntimeError: A gradient got fewer backwards than the step should have
                and was not marked as final, so its bucket never started.
        """
        missing = self.launches_per_step - self._launched
        if missing:
            raise RuntimeError(
                f"{missing} of {self.launches_per_step} gradient buckets are incomplete: "
                "a parameter took no part in some microbatch's backward"
            )
        while self._arrivals:
            self._arrivals.popleft().wait()

    def _accumulated(
        self, gradients: _BucketGradients, member: int, count: int, _parameter: Tensor
    ) -> None:
        """Count a backward of one parameter, and start what became complete."""
        gradients.collect(member)
        gradients.backwards_done[member] += count
        self._launch_complete()

    def _launch_complete(self) -> None:
        """Start buckets in the same order on every rank, whatever order they are complete in.

        Ranks that disagree on the order would wait for ever.
        """
        while self._launched < self.launches_per_step:
            turn, index = divmod(self._launched, len(self._gradients))
            if not self._gradients[index].complete(turn):
                return
            self._arrivals.append(self._gradients[index].launch(self._wire))
            self._launched += 1
            if self._plan.zero == 2 and len(self._arrivals) > _FREED_BUCKETS_IN_FLIGHT:
                self._arrivals.popleft().wait()


class _BucketGradients:
    """The gradients of one bucket.

    Weights as precise as the buffer whose whole gradients are kept have them as
    views into it, where autograd adds to them. Otherwise each gradient is added
    to the buffer when autograd has made it, and freed. With sharded optimizer
    state the sum of this rank's part replaces its own summand.

    Attributes:
        bucket: The parameters.
        backwards_done: Per parameter, backwards of this step that have added to it.
    """

    def __init__(self, bucket: Bucket, group: MeshGroup, plan: ReductionPlan) -> None:
        self.bucket = bucket
        self.backwards_done = [0] * len(bucket.members)
        self._plan = plan
        self._flat: Tensor | None = None
        self._part: Tensor | None = None
        if plan.zero == 2:
            self._part = self._zeros(bucket.size // group.size)
        else:
            self._flat = self._zeros(bucket.size)
            if plan.zero == 1:
                self._part = self._flat.chunk(group.size)[group.position]
        self._views = plan.zero < 2 and bucket.members[0].dtype == plan.dtype
        if self._flat is not None and self._views:
            for member, parameter in enumerate(bucket.members):
                parameter.grad = bucket.view(self._flat, member)

    @property
    def kept(self) -> Tensor:
        """Return the whole sum, or this rank's part where only that is kept."""
        kept = self._flat if self._part is None else self._part
        assert kept is not None  # either is made with the object
        return kept

    @property
    def held(self) -> list[Tensor]:
        """Return the buffers that exist now; with sharded optimizer state the part lies in one."""
        part = self._part if self._plan.zero == 2 else None
        return [kept for kept in (self._flat, part) if kept is not None]

    def start_step(self) -> None:
        """Zero the gradients."""
        self.backwards_done = [0] * len(self.bucket.members)
        for kept in self.held:
            kept.zero_()

    def collect(self, member: int) -> None:
        """Move a gradient that autograd made into the buffer."""
        parameter = self.bucket.members[member]
        if self._views or parameter.grad is None:
            return
        if self._flat is None:
            self._flat = self._zeros(self.bucket.size)
        self.bucket.view(self._flat, member).add_(parameter.grad)
        parameter.grad = None

    def close(self, member: int) -> None:
        """Expect nothing more for a parameter in this step."""
        self.collect(member)
        self.backwards_done[member] = self._plan.backwards

    def complete(self, turn: int) -> bool:
        """Return whether every gradient has all additions of a turn, counted from 0."""
        needed = (turn + 1) * (self._plan.backwards // self._plan.rounds)
        return min(self.backwards_done) >= needed

    def launch(self, wire: GradientWire) -> Arrival:
        """Start the sum over the replicas; with sharded gradients, give the buffer away."""
        flat = self._zeros(self.bucket.size) if self._flat is None else self._flat
        if self._part is None:
            return wire.all_reduce(flat)
        if self._plan.zero == 1:
            return wire.reduce_scatter(flat, self._part.copy_)
        self._flat = None
        return wire.reduce_scatter(flat, self._part.add_)

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=self._plan.dtype, device=self.bucket.device)
