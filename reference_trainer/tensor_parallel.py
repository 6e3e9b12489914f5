"""Tensor parallelism: a pair of linear layers whose weights are split over the group.

The first layer of a pair splits its outputs (``ColumnLinear``), the second its
inputs (``RowLinear``), so that nothing needs to be exchanged between them. Each
pair costs one all-reduce forward and one backward, and a transformer block has
two pairs: 2 + 2 all-reduces per block. Shapes: B microbatch, T tokens, D width,
F split width of this rank.

The scheme is that of Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .comm import Communicator
from .compat import is_wanted
from .gradient_norm import mark_split
from .mesh import MeshGroup


class ColumnLinear(nn.Module):
    """``y = x W^T + b`` with the rows of W, which are outputs, split over the group.

    Args:
        weight: The full weight (outputs, D), equal on every rank; sliced here.
        parts: Equal blocks of outputs that are sliced one by one; 3 where
            queries, keys and values share one weight.
        group: The ranks to split over.
        comm: Issues the backward's all-reduce.
    """

    def __init__(self, weight: Tensor, parts: int, group: MeshGroup, comm: Communicator) -> None:
        super().__init__()
        outputs, width = weight.shape
        rows = weight.view(parts, group.size, outputs // (parts * group.size), width)
        own = rows[:, group.position].reshape(-1, width).clone()
        self.weight = mark_split(nn.Parameter(own), group.axis)
        self.bias = mark_split(nn.Parameter(torch.zeros(own.shape[0])), group.axis)
        self._group = group
        self._comm = comm

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (B, T, D), equal on every rank, to this rank's (B, T, F)."""
        return _Column.apply(hidden, self.weight, self.bias, self._group, self._comm)  # type: ignore[no-any-return, no-untyped-call]


class RowLinear(nn.Module):
    """``y = x W^T + b`` with the columns of W, which are inputs, split over the group.

    Args:
        weight: The full weight (D, inputs), equal on every rank; sliced here.
        group: The ranks to split over.
        comm: Issues the forward's all-reduce.
    """

    def __init__(self, weight: Tensor, group: MeshGroup, comm: Communicator) -> None:
        super().__init__()
        own = weight.chunk(group.size, dim=1)[group.position].clone()
        self.weight = mark_split(nn.Parameter(own), group.axis)
        self.bias = nn.Parameter(torch.zeros(weight.shape[0]))
        self._group = group
        self._comm = comm

    def forward(self, split: Tensor) -> Tensor:
        """Map this rank's (B, T, F) to (B, T, D), equal on every rank."""
        return _Row.apply(split, self.weight, self.bias, self._group, self._comm)  # type: ignore[no-any-return, no-untyped-call]


class _Column(torch.autograd.Function):
    """Every rank used the same input, so the input's gradient is a sum over the group."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, group: MeshGroup, comm: Communicator
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.group, ctx.comm = group, comm
        return torch.nn.functional.linear(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        hidden, weight = ctx.saved_tensors
        grad = grads[0]
        for_hidden, for_weight = (is_wanted(node) for node, _ in ctx.next_functions[:2])
        grad_hidden = pending = grad_weight = grad_bias = None
        if for_hidden:
            grad_hidden = grad @ weight
            pending = ctx.comm.all_reduce(grad_hidden, ctx.group)
        # The weight's gradient needs nothing from the others: it overlaps the all-reduce.
        if for_weight:
            grad_weight, grad_bias = _parameter_grads(grad, hidden)
        if pending is not None:
            pending.wait()
        return grad_hidden, grad_weight, grad_bias, None, None


class _Row(torch.autograd.Function):
    """Every rank holds one summand of the output; the bias joins after the sum."""

    @staticmethod
    def forward(
        ctx: Any, split: Tensor, weight: Tensor, bias: Tensor, group: MeshGroup, comm: Communicator
    ) -> Tensor:
        ctx.save_for_backward(split, weight)
        output = split @ weight.T
        comm.all_reduce(output, group).wait()
        return output + bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        split, weight = ctx.saved_tensors
        grad = grads[0]
        for_split, for_weight = (is_wanted(node) for node, _ in ctx.next_functions[:2])
        grad_split = grad @ weight if for_split else None
        grad_weight, grad_bias = _parameter_grads(grad, split) if for_weight else (None, None)
        return grad_split, grad_weight, grad_bias, None, None


def _parameter_grads(grad: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias of a linear layer, summed over B and T."""
    rows = grad.reshape(-1, grad.shape[-1])
    return rows.T @ inputs.reshape(-1, inputs.shape[-1]), rows.sum(dim=0)
