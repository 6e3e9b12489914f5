"""Over which ranks the gradient of each parameter is a sum.

Most parameters are equal on all replicas. A parameter that tensor-parallel
ranks apply to different tokens is equal on all of them as well, and its
gradient is a sum over them too; experts are equal on fewer ranks. Summing over
one wider group at the end of the step costs nothing per layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from torch import nn


class Reduction(Enum):
    """A group of the mesh, by the name of its field."""

    REPLICAS = "replicas"
    REPLICAS_AND_TP = "replicas_and_tp"
    EXPERT_REPLICAS = "expert_replicas"


def reduced_over(reduction: Reduction, parameter: nn.Parameter) -> nn.Parameter:
    """Return the parameter, marked with the group over which its gradient is a sum."""
    parameter.reduction = reduction  # type: ignore[attr-defined]
    return parameter


def reduction_of(parameter: nn.Parameter) -> Reduction:
    """Return the group over which a parameter's gradient is a sum; by default the replicas."""
    found: Reduction = getattr(parameter, "reduction", Reduction.REPLICAS)
    return found


def by_reduction(parameters: Iterable[nn.Parameter]) -> dict[Reduction, list[nn.Parameter]]:
    """Return the parameters of each group that any of them has, in their order."""
    members: dict[Reduction, list[nn.Parameter]] = {kind: [] for kind in Reduction}
    for parameter in parameters:
        members[reduction_of(parameter)].append(parameter)
    return {kind: found for kind, found in members.items() if found}
