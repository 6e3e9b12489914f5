"""Over which ranks the gradient of each parameter is a sum.

Most parameters are equal on all replicas. A parameter that tensor-parallel
ranks apply to different tokens is equal on all of them as well, and its
gradient is a sum over them too; experts are equal on fewer ranks. Summing over
one wider group at the end of the step costs nothing per layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

from torch import nn

from .mesh import Mesh, MeshGroup


class Reduction(Enum):
    """A group of the mesh, by the name of its field."""

    REPLICAS = "replicas"
    REPLICAS_AND_TP = "replicas_and_tp"
    EXPERT_REPLICAS = "expert_replicas"


class Reducer(Protocol):
    """Sums the gradients of some parameters over a group."""

    def start_step(self) -> None:
        """Zero the gradients."""

    def finish(self) -> None:
        """Return when every gradient is the sum over its group."""


class GroupedReducer:
    """One reducer per group of ranks.

    Args:
        parameters: In model order.
        mesh: The groups.
        make: Builds the reducer of some parameters over a group.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        mesh: Mesh,
        make: Callable[[list[nn.Parameter], MeshGroup], Reducer],
    ) -> None:
        members: dict[Reduction, list[nn.Parameter]] = {kind: [] for kind in Reduction}
        for parameter in parameters:
            members[reduction_of(parameter)].append(parameter)
        self._reducers = [
            make(found, getattr(mesh, kind.value)) for kind, found in members.items() if found
        ]

    def start_step(self) -> None:
        """Zero the gradients."""
        for reducer in self._reducers:
            reducer.start_step()

    def finish(self) -> None:
        """Return when every gradient is the sum over its group."""
        for reducer in self._reducers:
            reducer.finish()


def reduced_over(reduction: Reduction, parameter: nn.Parameter) -> nn.Parameter:
    """Return the parameter, marked with the group over which its gradient is a sum."""
    parameter.reduction = reduction  # type: ignore[attr-defined]
    return parameter


def reduction_of(parameter: nn.Parameter) -> Reduction:
    """Return the group over which a parameter's gradient is a sum; by default the replicas."""
    found: Reduction = getattr(parameter, "reduction", Reduction.REPLICAS)
    return found
