"""What each ``c10d`` operator is: its kind, and where its arguments are.

Positions are those of the operator schemas. The size of a message follows the
convention of the tables: output for all-gather, input otherwise. A scatter has
its input on one rank only, so the output of one member times the group size
stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..schema.terms import CollectiveKind, Direction

Args = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _List:
    """The tensors of one argument that is a list of them."""

    position: int

    def __call__(self, args: Args) -> list[Any]:
        found: list[Any] = args[self.position]
        return found


@dataclass(frozen=True, slots=True)
class _One:
    """The tensor that is one argument."""

    position: int

    def __call__(self, args: Args) -> list[Any]:
        return [args[self.position]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the ``c10d`` namespace."""

    name: str
    group_at: int
    """Position of the process group."""
    message: Callable[[Args], list[Any]]
    """The tensors whose bytes are the message."""
    kind: CollectiveKind | None = None
    """The collective, or None for a point-to-point operation."""
    direction: Direction | None = None
    """Which end of a point-to-point operation."""
    peer_at: int | None = None
    """Position of the other end's group rank; None where any may send."""
    times_group_size: bool = False
    blocks: bool = False
    """True where the call itself waits for the end and gives no handle."""
    root_at: int | None = None
    """Position of the group rank of the one member that gives or gets; None where there is none."""
    outputs_at: int | None = None
    """Position of what a functional collective waits for; None where it has no such form."""

    @property
    def message_at(self) -> int | None:
        """Position of the message's tensor or tensors, None where it is no argument itself."""
        return self.message.position if isinstance(self.message, _List | _One) else None

    @property
    def is_one(self) -> bool:
        """Tell whether that argument is one tensor."""
        return isinstance(self.message, _One)


_list = _List
_one = _One


def _nested(position: int) -> Callable[[Args], list[Any]]:
    return lambda args: [tensor for inner in args[position] for tensor in inner]


def _nothing(_args: Args) -> list[Any]:
    return []


_K = CollectiveKind

OPERATORS = (
    Operator("allreduce_", 1, _list(0), _K.ALL_REDUCE, outputs_at=0),
    Operator("allreduce_coalesced_", 1, _list(0), _K.ALL_REDUCE, outputs_at=0),
    Operator("allgather_", 2, _nested(0), _K.ALL_GATHER),
    Operator("_allgather_base_", 2, _one(0), _K.ALL_GATHER, outputs_at=0),
    Operator("allgather_coalesced_", 2, _nested(0), _K.ALL_GATHER),
    Operator("allgather_into_tensor_coalesced_", 2, _list(0), _K.ALL_GATHER, outputs_at=0),
    Operator("reduce_scatter_", 2, _nested(1), _K.REDUCE_SCATTER),
    Operator("_reduce_scatter_base_", 2, _one(1), _K.REDUCE_SCATTER, outputs_at=0),
    Operator("reduce_scatter_tensor_coalesced_", 2, _list(1), _K.REDUCE_SCATTER, outputs_at=0),
    Operator("alltoall_", 2, _list(1), _K.ALL_TO_ALL),
    Operator("alltoall_base_", 2, _one(1), _K.ALL_TO_ALL, outputs_at=0),
    Operator("broadcast_", 1, _list(0), _K.BROADCAST, root_at=2, outputs_at=0),
    Operator("reduce_", 1, _list(0), _K.REDUCE, root_at=3),
    Operator("gather_", 2, _list(1), _K.GATHER, root_at=3),
    Operator("gather_into_tensor_", 2, _one(1), _K.GATHER, root_at=3),
    Operator("scatter_", 2, _list(0), _K.SCATTER, root_at=3, times_group_size=True),
    Operator("barrier", 1, _nothing, _K.BARRIER),
    Operator("monitored_barrier_", 1, _nothing, _K.BARRIER, blocks=True),
    Operator("send", 1, _list(0), direction=Direction.SEND, peer_at=2, outputs_at=0),
    Operator("recv_", 1, _list(0), direction=Direction.RECV, peer_at=2, outputs_at=0),
    Operator("recv_any_source_", 1, _list(0), direction=Direction.RECV),
)
"""Every operator that communicates, in the order of the collective kinds. Not all are in every torch."""

NOT_COMMUNICATION = frozenset({"check_for_nan"})
"""Operators of the namespace that do not communicate."""


def with_root(operator: Operator) -> Callable[[Args, Any, int, Any], tuple[int, Any]] | None:
    """Return what gives size and type of a rooted collective, the type with its root; None of others."""
    root_at, times_group_size = operator.root_at, operator.times_group_size
    if root_at is None:
        return None

    def rooted(args: Args, group: Any, size_bytes: int, dtype: Any) -> tuple[int, Any]:
        whole = size_bytes * group.size if times_group_size else size_bytes
        return whole, (dtype, args[root_at])

    return rooted
