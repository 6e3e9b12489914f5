"""Attention of some queries to some keys, with the logarithm of its normaliser.

The normaliser is what lets attention be computed in parts: outputs of two parts
are joined by the weight that each one's normaliser has in their sum. Fused
kernels are used where there is one, for a CPU and for 16-bit types on a GPU;
plain matrix products do the same elsewhere. Shapes: B microbatch, H heads,
Q queries, K keys, C channels of a head.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)
_FUSED_CHANNELS = 8
"""The fused kernel of a GPU takes heads with a multiple of this many channels."""


class Attended(NamedTuple):
    """Attention over some of the keys."""

    output: Tensor
    """(B, H, Q, C), normalised over these keys."""
    normaliser: Tensor
    """(B, H, Q) fp32: log of the sum of exponentiated scores."""


class AttentionGrads(NamedTuple):
    """Gradients of the three inputs, shaped like them."""

    query: Tensor
    key: Tensor
    value: Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Attended:
    """Return attention of (B, H, Q, C) queries to (B, H, K, C) keys; no gradient is recorded."""
    if not query.is_cuda:
        return Attended(
            *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, 0.0, causal
            )
        )
    if _is_fused_on_gpu(query):
        found = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)
        return Attended(found[0], found[1])
    return plain_attend(query, key, value, causal=causal)


def attend_backward(
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    attended: Attended,
    *,
    causal: bool,
) -> AttentionGrads:
    """Return the gradients of query, key and value.

    Args:
        grad: Gradient of the output, (B, H, Q, C).
        inputs: Query, key and value.
        attended: Output and normaliser over **all** keys, of which ``inputs`` may be a part.
        causal: Whether query i sees only keys up to i.
    """
    query, key, value = inputs
    output, normaliser = attended
    if not query.is_cuda:
        return AttentionGrads(
            *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, query, key, value, output, normaliser, 0.0, causal
            )
        )
    if _is_fused_on_gpu(query):
        none = torch.zeros(2, dtype=torch.uint64, device=query.device)
        return AttentionGrads(
            *torch.ops.aten._scaled_dot_product_flash_attention_backward(
                *(grad, query, key, value, output, normaliser, None, None),
                *(query.shape[2], key.shape[2], 0.0, causal, none, none[:0]),
            )
        )
    return plain_attend_backward(grad, inputs, attended, causal=causal)


def plain_attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Attended:
    """Return attention by matrix products, with the shapes of ``attend``."""
    scores = _scores(query, key, causal=causal)
    normaliser = scores.logsumexp(dim=-1)
    weights = (scores - normaliser.unsqueeze(-1)).exp()
    return Attended((weights @ value.float()).to(query.dtype), normaliser)


def plain_attend_backward(
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    attended: Attended,
    *,
    causal: bool,
) -> AttentionGrads:
    """Return the gradients by matrix products (Dao 2023, arXiv 2307.08691, algorithm 2)."""
    query, key, value = (tensor.float() for tensor in inputs)
    wide = grad.float()
    weights = (_scores(query, key, causal=causal) - attended.normaliser.unsqueeze(-1)).exp()
    row = (wide * attended.output.float()).sum(dim=-1, keepdim=True)
    scores = weights * (wide @ value.transpose(-1, -2) - row) / sqrt(query.shape[-1])
    found = (scores @ key, scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ wide)
    return AttentionGrads(*(part.to(grad.dtype) for part in found))


def join(one: Attended, other: Attended) -> Attended:
    """Return attention over the keys of two parts, in fp32.

    ``out = (e^a out_a + e^b out_b) / (e^a + e^b)`` with the normalisers a and b.
    """
    both = torch.logaddexp(one.normaliser, other.normaliser)
    parts = (
        part.output.float() * (part.normaliser - both).exp().unsqueeze(-1) for part in (one, other)
    )
    return Attended(sum(parts, torch.zeros((), device=both.device)), both)


def _is_fused_on_gpu(query: Tensor) -> bool:
    return query.dtype in _HALF and query.shape[-1] % _FUSED_CHANNELS == 0


def _scores(query: Tensor, key: Tensor, *, causal: bool) -> Tensor:
    """Return the scaled scores (B, H, Q, K) in fp32, minus infinity where a key is not seen."""
    scores = query.float() @ key.float().transpose(-1, -2) / sqrt(query.shape[-1])
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores
