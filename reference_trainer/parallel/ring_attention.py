"""Causal attention over a ring of ranks: keys and values travel, queries stay.

The sequence is cut into 2 n chunks, and rank i holds the chunks i and 2n - 1 - i
(zig-zag), so that causality leaves every rank the same work. With n = 3::

    rank 0: chunks 0 5      rank 1: chunks 1 4      rank 2: chunks 2 3

A rank starts with its own keys. Those of rank j arrive j steps of the ring later:

- j before i: all own queries come after chunk j and before chunk 2n - 1 - j, so
  they see the first half of the keys, in full;
- j after i: the second half of the queries sees all keys, the first half none.

Both are half of a full square. While a part is computed, the next keys are on
their way. In the backward the keys make the round again, and their gradients
follow one step behind, until they are home.

Ring attention is that of Liu et al. 2023 (arXiv 2310.01889); the cut is that of
Llama 3 (arXiv 2407.21783, section 3.3.2). Shapes: B microbatch, H heads, T tokens
of this rank, C channels of a head.

The logarithm of its normaliser is what lets attention be computed in parts: outputs of two parts
are joined by the weight that each one's normaliser has in their sum. Fused
kernels are used where there is one, for a CPU and for 16-bit types on a GPU;
plain matrix products do the same elsewhere. Shapes: B microbatch, H heads,
Q queries, K keys, C channels of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .comm import Communicator, Pending
from .mesh import MeshGroup

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


_ALL = slice(None)


def ring_attention(
    query: Tensor, key: Tensor, value: Tensor, group: MeshGroup, comm: Communicator
) -> Tensor:
    """Return causal attention of this rank's queries to the whole sequence.

    Args:
        query: (B, H, T, C), the tokens ``zigzag_tokens`` of this rank.
        key: Likewise.
        value: Likewise.
        group: The ranks that share the sequence.
        comm: Passes keys and values on.
    """
    return _Ring.apply(query, key, value, group, comm)  # type: ignore[no-any-return, no-untyped-call]


def zigzag_tokens(seq_len: int, group: MeshGroup) -> Tensor:
    """Return the positions of this rank's tokens, (seq_len / n,), in increasing order."""
    chunks = torch.arange(seq_len).chunk(2 * group.size)
    return torch.cat((chunks[group.position], chunks[-1 - group.position]))


class _Ring(torch.autograd.Function):
    """The forward round and the backward round."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: MeshGroup, comm: Communicator
    ) -> Tensor:
        attended: Attended | None = None
        for step, keys_values in enumerate(_round(torch.stack((key, value)), group, comm)):
            queries, keys = _seen(step, group, query.shape[2])
            part_key, part_value = keys_values[:, :, :, keys]
            part = attend(query[:, :, queries], part_key, part_value, causal=step == 0)
            attended = part if attended is None else _joined(attended, part, queries)
        assert attended is not None
        output = attended.output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, attended.normaliser)
        ctx.group, ctx.comm = group, comm
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        query, key, value, output, normaliser = ctx.saved_tensors
        group, comm = ctx.group, ctx.comm
        grad_query = torch.zeros_like(query, dtype=torch.float32)
        following: tuple[Tensor, Pending] | None = None
        for step, keys_values in enumerate(_round(torch.stack((key, value)), group, comm)):
            queries, keys = _seen(step, group, query.shape[2])
            part_key, part_value = keys_values[:, :, :, keys]
            found = attend_backward(
                grads[0][:, :, queries],
                (query[:, :, queries], part_key, part_value),
                Attended(output[:, :, queries], normaliser[:, :, queries].contiguous()),
                causal=step == 0,
            )
            grad_query[:, :, queries] += found.query
            so_far = _arrived(following, like=keys_values)
            so_far[:, :, :, keys] += torch.stack((found.key, found.value))
            following = comm.pass_on(so_far, group)
        grad_key, grad_value = _arrived(following, like=key).to(key.dtype)
        return grad_query.to(query.dtype), grad_key, grad_value, None, None


def _round(keys_values: Tensor, group: MeshGroup, comm: Communicator) -> Iterator[Tensor]:
    """Yield the keys and values of every rank as they arrive, own ones first.

    The next ones are on their way while the caller computes.
    """
    for _ in range(group.size - 1):
        arriving, pending = comm.pass_on(keys_values, group)
        yield keys_values
        pending.wait()
        keys_values = arriving
    yield keys_values


def _arrived(following: tuple[Tensor, Pending] | None, like: Tensor) -> Tensor:
    """Return the gradients that follow the keys, in fp32; zeros where none were computed yet."""
    if following is None:
        return torch.zeros_like(like, dtype=torch.float32)
    grads, pending = following
    pending.wait()
    return grads


def _seen(step: int, group: MeshGroup, tokens: int) -> tuple[slice, slice]:
    """Return which own queries see which keys of those that arrive in a step."""
    half = tokens // 2
    if step == 0:
        return _ALL, _ALL
    if step <= group.position:
        return _ALL, slice(0, half)
    return slice(half, tokens), _ALL


def _joined(whole: Attended, part: Attended, queries: slice) -> Attended:
    """Return the attention so far with that of some queries to more keys."""
    seen = Attended(whole.output[:, :, queries], whole.normaliser[:, :, queries])
    joined = join(seen, part)
    if queries == _ALL:
        return joined
    output, normaliser = whole.output.float().clone(), whole.normaliser.clone()
    output[:, :, queries], normaliser[:, :, queries] = joined
    return Attended(output, normaliser)
