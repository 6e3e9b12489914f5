"""The gradient of the whole model over its ranks: where it is a sum, its norm, clipping by that.

Each rank adds up the squares of the gradients that it holds, and all-reduces
over every axis add up the ranks. A gradient that several ranks hold alike (that
of a norm's weight under tensor parallelism, and of every weight on the replicas)
counts with one over their number, so that it counts once.

The norm stays on the device: nothing waits for it on the host. (Pascanu et al.
2013, arXiv 1211.5063, section 3.2.)

Most parameters are equal on all replicas. A parameter that tensor-parallel
ranks apply to different tokens is equal on all of them as well, and its
gradient is a sum over them too; experts are equal on fewer ranks. Summing over
one wider group at the end of the step costs nothing per layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor, nn

from meshscope.probe.schema.terms import Axis

from ..compat import foreach_norm, foreach_scale
from .comm import Communicator
from .mesh import Mesh, MeshGroup

_SPLIT_AXES = "_split_axes"
_TINY = 1e-6
"""Keeps a zero gradient from being divided by its norm."""


class Piece(NamedTuple):
    """A gradient, or the part of it that this rank holds."""

    gradient: Tensor
    """Of any shape."""
    copies: int
    """Ranks of the job that hold the same."""


def mark_split(parameter: nn.Parameter, *axes: Axis) -> nn.Parameter:
    """Note that the ranks along some axes hold different parts of a parameter; return it."""
    setattr(parameter, _SPLIT_AXES, frozenset(axes))
    return parameter


def split_axes(parameter: nn.Parameter) -> frozenset[Axis]:
    """Return the axes of ``mark_split``; none for a parameter that was never marked."""
    axes: frozenset[Axis] = getattr(parameter, _SPLIT_AXES, frozenset())
    return axes


def copies_over(axis: Axis, parameter: nn.Parameter, size: int) -> int:
    """Return how many of the ranks along an axis hold the same of a parameter: 1 or all."""
    return 1 if axis in split_axes(parameter) else size


def gradient_norm(max_norm: float, mesh: Mesh, comm: Communicator) -> GradientNorm | None:
    """Return what clips by the norm over the whole mesh; None for a limit of 0."""
    return GradientNorm(max_norm, (mesh.tp, mesh.pp, mesh.replicas), comm) if max_norm else None


class GradientNorm:
    """Measures and clips the gradient of the whole model.

    Args:
        max_norm: Largest norm that is left as it is; infinite only measures.
        groups: This rank's group along each axis of the mesh.
        comm: Issues the all-reduces.
    """

    def __init__(self, max_norm: float, groups: Sequence[MeshGroup], comm: Communicator) -> None:
        self._max_norm = max_norm
        self._groups = groups
        self._comm = comm

    def clip(self, pieces: Sequence[Piece]) -> Tensor:
        """Scale the gradients so that the norm of all is at most ``max_norm``.

        Args:
            pieces: This rank's gradients; scaled in place.

        Returns:
            The norm before, a scalar on the device.
        """
        gradients = [piece.gradient for piece in pieces]
        norms = list(foreach_norm(gradients, 2, torch.float32))
        # Numbers of the host as arguments: a tensor of them would have to be copied and waited for.
        foreach_scale(norms, [piece.copies**-0.5 for piece in pieces])
        squares = torch.stack(norms).square().sum()
        for group in self._groups:
            self._comm.all_reduce(squares, group).wait()
        norm = squares.sqrt()
        if math.isfinite(self._max_norm):
            foreach_scale(gradients, (self._max_norm / (norm + _TINY)).clamp(max=1.0))
        return norm


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
