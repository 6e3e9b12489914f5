"""Expert parallelism: tokens travel to the ranks that hold their experts, and back.

Every rank sorts its assignments by expert, which sorts them by the rank that
holds the expert, and one all-to-all delivers them; the results come back by the
reverse one. How many tokens an expert gets depends on the data, so by default
the ranks exchange counts first, and the splits are uneven. With a capacity every
expert has room for the same number of rows of each rank: nothing needs to be
counted, splits are even, and what does not fit is dropped. Shapes: N tokens of
this rank, k experts per token, E experts, R rows sent, D width.

The exchange is that of GShard (Lepikhin et al. 2020, arXiv 2006.16668, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from .comm import Communicator
from .mesh import MeshGroup


@dataclass(frozen=True, slots=True)
class Shipment:
    """Which assignments a rank sends, in order of their expert."""

    assignments: Tensor
    """(R,) indices into the k N assignments; k N itself stands for an empty row."""
    rows: Tensor | int
    """Rows for each expert: (E,), or the same for all."""


def ship_all(experts: Tensor, expert_count: int) -> Shipment:
    """Return a shipment of every assignment.

    Args:
        experts: (k N,) the expert of each assignment.
        expert_count: E.
    """
    return Shipment(experts.argsort(stable=True), _count(experts, expert_count))


def ship_capacity(experts: Tensor, expert_count: int, capacity_factor: float) -> Shipment:
    """Return a shipment with room for ``ceil(factor k N / E)`` rows for each expert.

    Assignments that come first get the room: give all first choices before the
    second ones. (Expert capacity: Fedus et al. 2021, arXiv 2101.03961, section 2.2.)
    With E = 2 and room for 2::

        experts      0 0 1 0        assignments  0 1 2 4     (3 is dropped, 4 is an empty row)
    """
    total = len(experts)
    room = ceil(capacity_factor * total / expert_count)
    order = experts.argsort(stable=True)
    sorted_experts = experts[order]
    counts = _count(experts, expert_count)
    starts = counts.cumsum(0) - counts
    place = torch.arange(total, device=experts.device) - starts[sorted_experts]
    # What does not fit goes to one more slot, which is cut off: no size depends on the data.
    slots = torch.where(place < room, sorted_experts * room + place, expert_count * room)
    assignments = order.new_full((expert_count * room + 1,), total).scatter(0, slots, order)
    return Shipment(assignments[:-1], room)


def _count(experts: Tensor, expert_count: int) -> Tensor:
    """Return the assignments of each expert, (E,), without a look at the values by the host."""
    none = experts.new_zeros(expert_count)
    return none.scatter_add(0, experts, torch.ones_like(experts))


class Dispatch:
    """The way of one shipment to the experts and back.

    Args:
        shipment: What this rank sends.
        expert_count: E.
        group: The ranks that share the experts, each holding E / n neighbours.
        comm: Issues the all-to-alls.
    """

    def __init__(
        self, shipment: Shipment, expert_count: int, group: MeshGroup, comm: Communicator
    ) -> None:
        self._group, self._comm = group, comm
        self._own = expert_count // group.size
        if isinstance(shipment.rows, int):
            sent = received = [[shipment.rows] * self._own] * group.size
        else:
            counts = shipment.rows.view(group.size, self._own)
            arriving, pending = comm.all_to_all(counts, group)
            pending.wait()
            # Sizes of buffers are known to the host only: on a GPU this waits for the router.
            sent, received = counts.tolist(), arriving.tolist()
        self._sent = [sum(rows) for rows in sent]
        self._received = received

    def run(self, rows: Tensor, expert: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Send rows to their experts, and return the results in the order of the rows.

        Args:
            rows: (R, D) in the order of the shipment.
            expert: Maps the index of an own expert and its rows (any, D) to (any, D).
        """
        totals = [sum(counts) for counts in self._received]
        arrived = _Exchange.apply(rows, (self._sent, totals), self._group, self._comm)  # type: ignore[no-untyped-call]
        pieces = torch.split(arrived, [count for counts in self._received for count in counts])
        results: list[Tensor] = list(pieces)
        for index in range(self._own):
            # Every own expert gets one piece of each rank.
            own = slice(index, None, self._own)
            outcome = expert(index, torch.cat(pieces[own]))
            results[own] = torch.split(outcome, [counts[index] for counts in self._received])
        return _Exchange.apply(  # type: ignore[no-any-return, no-untyped-call]
            torch.cat(results), (totals, self._sent), self._group, self._comm
        )


class _Exchange(torch.autograd.Function):
    """An all-to-all of rows; gradients go back the way the rows came."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        splits: tuple[Sequence[int], Sequence[int]],
        group: MeshGroup,
        comm: Communicator,
    ) -> Tensor:
        ctx.splits, ctx.group, ctx.comm = splits, group, comm
        return _all_to_all(rows, splits, group, comm)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        sent, received = ctx.splits
        return _all_to_all(grads[0], (received, sent), ctx.group, ctx.comm), None, None, None


def _all_to_all(
    rows: Tensor,
    splits: tuple[Sequence[int], Sequence[int]],
    group: MeshGroup,
    comm: Communicator,
) -> Tensor:
    sent, received = splits
    arrived, pending = comm.all_to_all(rows, group, sent_rows=sent, received_rows=received)
    pending.wait()
    return arrived.view_as(arrived)
