"""Attention in parts, joined by the normalisers."""

from __future__ import annotations

import pytest
import torch

from meshscope.reference_trainer.parallel.attention_kernels import (
    Attended,
    attend,
    attend_backward,
    join,
    plain_attend,
    plain_attend_backward,
)


@pytest.fixture
def inputs():
    """Return query, key and value (2, 3, 8, 4) and a gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 8, 4, generator=generator) for _ in range(4)]


@pytest.mark.parametrize("causal", [True, False])
def test_the_fused_kernel_and_matrix_products_agree(inputs, causal):
    """Fails if the form for other devices computes something else."""
    query, key, value, grad = inputs
    fused = attend(query, key, value, causal=causal)
    plain = plain_attend(query, key, value, causal=causal)
    torch.testing.assert_close(fused, plain)
    triple = (query, key, value)
    torch.testing.assert_close(
        attend_backward(grad, triple, fused, causal=causal),
        plain_attend_backward(grad, triple, plain, causal=causal),
    )


def test_halves_of_the_keys_joined_are_all_keys(inputs):
    """Fails if the weights of two parts are wrong, in the forward or in the backward."""
    query, key, value, grad = inputs
    halves = [(key[:, :, part], value[:, :, part]) for part in (slice(0, 4), slice(4, 8))]
    joined = join(*(attend(query, *half, causal=False) for half in halves))
    whole = attend(query, key, value, causal=False)
    torch.testing.assert_close(joined, whole)
    expected = attend_backward(grad, (query, key, value), whole, causal=False)
    parts = [attend_backward(grad, (query, *half), joined, causal=False) for half in halves]
    torch.testing.assert_close(sum(part.query for part in parts), expected.query)
    torch.testing.assert_close(torch.cat([part.key for part in parts], dim=2), expected.key)
    torch.testing.assert_close(torch.cat([part.value for part in parts], dim=2), expected.value)


def test_joining_is_done_in_fp32(inputs):
    """Fails if every part that joins rounds the sum to 16 bits."""
    part = attend(*(tensor.bfloat16() for tensor in inputs[:3]), causal=False)
    assert join(part, Attended(part.output, part.normaliser)).output.dtype == torch.float32
