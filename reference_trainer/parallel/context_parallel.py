"""Context parallelism: the tokens of a sequence are split over the ranks of a group.

Only attention looks at other tokens, so only attention communicates. Two forms:

- ``ring``: keys and values are passed around (``ring_attention``);
- ``all_to_all``: before attention each rank gives away tokens for heads, and
  computes whole sequences of some heads; after it, back again. 2 all-to-alls
  forward and 2 backward per block. DeepSpeed Ulysses (Jacobs et al. 2023,
  arXiv 2309.14509).

Every rank of the group holds the same weights and sees other tokens: gradients
are summed over dp x cp. Shapes: B microbatch, H heads of this rank, T tokens of
this rank, n ranks, C channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .comm import Communicator
from .mesh import MeshGroup
from .ring_attention import ring_attention, zigzag_tokens

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention: query, key and value (B, H, T, C) to (B, H, T, C)."""


def local_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return causal attention (B, H, T, C) where this rank holds the whole sequence."""
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """How the ranks of a group share a sequence."""

    group: MeshGroup
    """The ranks."""
    comm: Communicator
    """Issues their exchanges."""
    form: Literal["ring", "all_to_all"]
    """How they compute attention."""

    def own_tokens(self, seq_len: int) -> Tensor:
        """Return the positions of this rank's tokens, (seq_len / n,), in increasing order."""
        if self.form == "ring" and self.group.size > 1:
            return zigzag_tokens(seq_len, self.group)
        return torch.arange(seq_len).chunk(self.group.size)[self.group.position]

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return causal attention of own tokens (B, H, T, C) to the whole sequence."""
        if self.group.size == 1:
            return local_attention(query, key, value)
        if self.form == "ring":
            return ring_attention(query, key, value, self.group, self.comm)
        stacked = torch.stack((query, key, value)).flatten(0, 1)  # (3 B, H, T, C)
        query, key, value = _all_to_all(stacked, self, "tokens").chunk(3)
        return _all_to_all(local_attention(query, key, value), self, "heads")


def _all_to_all(tensor: Tensor, split: ContextSplit, wanted: Literal["tokens", "heads"]) -> Tensor:
    """Give heads for tokens, (N, H, T, C) to (N, H / n, n T, C), or the reverse."""
    return _Exchange.apply(tensor, split, wanted)  # type: ignore[no-any-return, no-untyped-call]


class _Exchange(torch.autograd.Function):
    """An exchange is undone by the other one, and so is its gradient."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, split: ContextSplit, wanted: Literal["tokens", "heads"]
    ) -> Tensor:
        ctx.split, ctx.wanted = split, wanted
        return (_heads_for_tokens if wanted == "tokens" else _tokens_for_heads)(tensor, split)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        undo = _tokens_for_heads if ctx.wanted == "tokens" else _heads_for_tokens
        return undo(grads[0], ctx.split), None, None


def _heads_for_tokens(tensor: Tensor, split: ContextSplit) -> Tensor:
    """Return (N, H / n, n T, C) from (N, H, T, C)."""
    by_rank = torch.stack(tensor.chunk(split.group.size, dim=1))  # (n, N, H / n, T, C)
    received, pending = split.comm.all_to_all(by_rank, split.group)
    pending.wait()
    return received.movedim(0, 2).flatten(2, 3)


def _tokens_for_heads(tensor: Tensor, split: ContextSplit) -> Tensor:
    """Return (N, H, T, C) from (N, H / n, n T, C)."""
    by_rank = torch.stack(tensor.chunk(split.group.size, dim=2))  # (n, N, H / n, T, C)
    received, pending = split.comm.all_to_all(by_rank, split.group)
    pending.wait()
    return received.movedim(0, 1).flatten(1, 2)
