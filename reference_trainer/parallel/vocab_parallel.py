"""The vocabulary split over the tensor-parallel ranks: embedding, output head and loss.

Each rank holds V / t rows of the embedding and of the head. A rank looks up the
tokens it knows and adds zeros for the others; the loss is computed from split
logits with two small all-reduces, so that no rank ever holds (B, T, V). Shapes:
B microbatch, T tokens, S tokens of this rank between pairs of linear layers,
D width, U = V / t rows of this rank.

The scheme is that of Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .gradient_norm import mark_split
from .tensor_parallel import TensorSplit, leave
from .weight_places import split_over


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
