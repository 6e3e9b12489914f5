"""Tensor parallelism: linear layers and a vocabulary whose weights are split over the group.

The first layer of a pair splits its outputs (``ColumnLinear``), the second its
inputs (``RowLinear``), so that nothing needs to be exchanged between them. Each
pair costs one all-reduce forward and one backward, and a transformer block has
two pairs: 2 + 2 all-reduces per block.

With sequence parallelism the ranks also split what lies between the pairs, by
tokens: the first layer gathers them and the second scatters its sum. Forward and
backward then have 2 all-gathers and 2 reduce-scatters each::

    sums         norm  | x W1   gelu   W2 | all-reduce
    sequence     norm of T / t | all-gather | x W1 gelu W2 | reduce-scatter

Shapes: B microbatch, T tokens, t ranks, S = T / t with sequence parallelism and T
without, D width, F split width of this rank.

The schemes are those of Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053,
section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2).

The vocabulary is that of embedding, output head and loss. Each rank holds V / t rows of the embedding and of the head. A rank looks up the
tokens it knows and adds zeros for the others; the loss is computed from split
logits with two small all-reduces, so that no rank ever holds (B, T, V). Shapes:
B microbatch, T tokens, S tokens of this rank between pairs of linear layers,
D width, U = V / t rows of this rank.

The scheme is that of Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..compat import is_wanted
from .comm import Communicator, Pending
from .gradient_norm import Reduction, mark_split, reduced_over
from .mesh import MeshGroup
from .weight_places import split_over


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """How the ranks of a group share a stage."""

    group: MeshGroup
    """The ranks."""
    comm: Communicator
    """Issues their collectives."""
    sequence: bool = False
    """Whether they split tokens between the pairs of linear layers."""

    def shared(self, values: Tensor) -> nn.Parameter:
        """Return a parameter, of any shape, that every rank holds in full and applies to its tokens.

        With sequence parallelism each rank sees a part of the tokens, so its
        gradient is a summand.
        """
        reduction = Reduction.REPLICAS_AND_TP if self.sequence else Reduction.REPLICAS
        return reduced_over(reduction, nn.Parameter(values))

    def norm(self, width: int) -> nn.LayerNorm:
        """Return a LayerNorm over (B, S, D)."""
        norm = nn.LayerNorm(width)
        norm.weight, norm.bias = self.shared(norm.weight.data), self.shared(norm.bias.data)
        return norm

    def own_tokens(self, tokens: int) -> slice:
        """Return which of some consecutive tokens this rank holds between the pairs."""
        if not self.sequence:
            return slice(0, tokens)
        share = tokens // self.group.size
        return slice(self.group.position * share, (self.group.position + 1) * share)


class ColumnLinear(nn.Module):
    """``y = x W^T + b`` with the rows of W, which are outputs, split over the group.

    Args:
        weight: The full weight (outputs, D), equal on every rank; sliced here.
        parts: Equal blocks of outputs that are sliced one by one; 3 where
            queries, keys and values share one weight.
        split: The ranks to split over.
    """

    def __init__(self, weight: Tensor, parts: int, split: TensorSplit) -> None:
        super().__init__()
        outputs, width = weight.shape
        group = split.group
        rows = weight.view(parts, group.size, outputs // (parts * group.size), width)
        own = rows[:, group.position].reshape(-1, width).clone()
        share = (parts, rows.shape[2])
        self.weight = split_over(
            mark_split(nn.Parameter(own), group.axis), group, 1, view=(*share, width)
        )
        bias = mark_split(nn.Parameter(torch.zeros(own.shape[0])), group.axis)
        self.bias = split_over(bias, group, 1, view=share)
        self._split = split

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (B, S, D) to this rank's (B, T, F)."""
        return column_linear(hidden, self.weight, self.bias, self._split)


class RowLinear(nn.Module):
    """``y = x W^T + b`` with the columns of W, which are inputs, split over the group.

    Args:
        weight: The full weight (D, inputs), equal on every rank; sliced here.
        split: The ranks to split over.
    """

    def __init__(self, weight: Tensor, split: TensorSplit) -> None:
        super().__init__()
        group = split.group
        own = weight.chunk(group.size, dim=1)[group.position].clone()
        self.weight = split_over(mark_split(nn.Parameter(own), group.axis), group, 1)
        self.bias = split.shared(torch.zeros(weight.shape[0]))
        self._split = split

    def forward(self, inputs: Tensor) -> Tensor:
        """Map this rank's (B, T, F) to (B, S, D)."""
        return leave(inputs @ self.weight.T, self._split) + self.bias


def column_linear(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, split: TensorSplit
) -> Tensor:
    """Map (B, S, D) to (B, T, F) by this rank's rows (F, D) of a weight and (F,) of a bias."""
    return _Column.apply(hidden, weight, bias, split)  # type: ignore[no-any-return, no-untyped-call]


def enter(hidden: Tensor, split: TensorSplit) -> Tensor:
    """Bring (B, S, D) to where weights are split: (B, T, D), equal on every rank."""
    return _Enter.apply(hidden, split)  # type: ignore[no-any-return, no-untyped-call]


def leave(summand: Tensor, split: TensorSplit) -> Tensor:
    """Sum (B, T, D) over the group, and keep this rank's tokens: (B, S, D)."""
    return _Leave.apply(summand, split)  # type: ignore[no-any-return, no-untyped-call]


class _Column(torch.autograd.Function):
    """``enter`` and a linear layer in one, so that the backward can overlap."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, split: TensorSplit
    ) -> Tensor:
        hidden = _gather(hidden, split)
        ctx.save_for_backward(hidden, weight)
        ctx.split, ctx.has_bias = split, bias is not None
        return torch.nn.functional.linear(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        hidden, weight = ctx.saved_tensors
        grad = grads[0]
        for_hidden, for_weight = (is_wanted(node) for node, _ in ctx.next_functions[:2])
        grad_hidden = pending = grad_weight = grad_bias = None
        if for_hidden:
            grad_hidden, pending = _start_sum(grad @ weight, ctx.split)
        # The weight's gradient needs nothing from the others: it overlaps the sum.
        if for_weight:
            rows = grad.reshape(-1, grad.shape[-1])
            grad_weight = rows.T @ hidden.reshape(-1, hidden.shape[-1])
            grad_bias = rows.sum(dim=0) if ctx.has_bias else None
        if pending is not None:
            pending.wait()
        return grad_hidden, grad_weight, grad_bias, None


class _Enter(torch.autograd.Function):
    """Every rank used the same input, so the input's gradient is a sum over the group."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, split: TensorSplit) -> Tensor:
        ctx.split = split
        gathered = _gather(hidden, split)
        return gathered.view_as(gathered)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = grads[0].contiguous()
        if not ctx.split.sequence:
            # The sum is in place, and another branch may hold the same gradient.
            grad = grad.clone()
        grad, pending = _start_sum(grad, ctx.split)
        pending.wait()
        return grad, None


class _Leave(torch.autograd.Function):
    """Every rank holds one summand, whose gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, summand: Tensor, split: TensorSplit) -> Tensor:
        ctx.split = split
        if not split.sequence:
            ctx.mark_dirty(summand)
        total, pending = _start_sum(summand, split)
        pending.wait()
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _gather(grads[0], ctx.split), None


def _gather(hidden: Tensor, split: TensorSplit) -> Tensor:
    """Return (B, T, D) from the (B, S, D) of all ranks."""
    if not split.sequence:
        return hidden
    shards, pending = split.comm.all_gather(hidden, split.group)  # (t, B, S, D)
    pending.wait()
    return shards.transpose(0, 1).flatten(1, 2)


def _start_sum(summand: Tensor, split: TensorSplit) -> tuple[Tensor, Pending]:
    """Start to sum (B, T, D) over the group, in place or into (B, S, D)."""
    if not split.sequence:
        return summand, split.comm.all_reduce(summand, split.group)
    batch, tokens, width = summand.shape
    size = split.group.size
    parts = summand.view(batch, size, tokens // size, width).transpose(0, 1)
    return split.comm.reduce_scatter(parts, split.group)


def own_rows(weight: Tensor, split: TensorSplit) -> nn.Parameter:
    """Return this rank's rows (U, D) of a matrix (V, D) that is equal on every rank."""
    group = split.group
    own = weight.chunk(group.size)[group.position].clone()
    return split_over(mark_split(nn.Parameter(own), group.axis), group, 0)


def embed(ids: Tensor, weight: Tensor, split: TensorSplit) -> Tensor:
    """Map ids (B, T) to (B, S, D) by a table whose rows (U, D) are split over the group."""
    if split.group.size == 1:
        return nn.functional.embedding(ids, weight)
    own, is_own = _own_ids(ids, len(weight), split)
    found = nn.functional.embedding(own, weight) * is_own.unsqueeze(-1)
    return leave(found, split)


def cross_entropy(logits: Tensor, labels: Tensor, split: TensorSplit) -> Tensor:
    """Return the mean loss of the tokens.

    Args:
        logits: (B, T, U) of this rank's rows.
        labels: (B, T), over the whole vocabulary.
        split: The ranks that share the vocabulary.
    """
    flat, targets = logits.flatten(0, 1), labels.flatten()
    if split.group.size == 1:
        return nn.functional.cross_entropy(flat.float(), targets)
    loss: Tensor = _CrossEntropy.apply(flat, targets, split)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """``log sum exp(logits) - logit of the label``, both sums over all ranks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, split: TensorSplit) -> Tensor:
        wide = logits.float()
        peak = wide.amax(dim=-1)
        split.comm.all_reduce(peak, split.group, op=dist.ReduceOp.MAX).wait()
        shifted = wide - peak.unsqueeze(-1)
        own, is_own = _own_ids(labels, logits.shape[-1], split)
        target = shifted.gather(-1, own.unsqueeze(-1)).squeeze(-1) * is_own
        exponentials = shifted.exp()
        sums = torch.stack((exponentials.sum(dim=-1), target))
        split.comm.all_reduce(sums, split.group).wait()
        total, target = sums.unbind()
        ctx.save_for_backward(exponentials / total.unsqueeze(-1), own, is_own)
        ctx.dtype = logits.dtype
        return (total.log() - target).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        softmax, own, is_own = ctx.saved_tensors
        # softmax - one-hot(label); the label is on one rank only.
        hot = -is_own.to(softmax.dtype).unsqueeze(-1)
        grad = softmax.scatter_add(-1, own.unsqueeze(-1), hot)
        return (grad * (grads[0] / len(grad))).to(ctx.dtype), None, None


def _own_ids(ids: Tensor, rows: int, split: TensorSplit) -> tuple[Tensor, Tensor]:
    """Return the row of each token on this rank, 0 where it is elsewhere, and whether it is here."""
    shifted = ids - split.group.position * rows
    is_own = (shifted >= 0) & (shifted < rows)
    return shifted * is_own, is_own
