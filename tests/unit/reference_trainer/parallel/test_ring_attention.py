"""Ring attention: who holds which tokens, and that parts add up to the whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest
import torch

from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.parallel.comm import Communicator, Pending, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import MeshGroup
from meshscope.reference_trainer.parallel.ring_attention import (
    Attended,
    attend,
    attend_backward,
    join,
    plain_attend,
    plain_attend_backward,
    ring_attention,
    zigzag_tokens,
)

TOKENS = 24


class Threads(Communicator):
    """A ring whose members are threads of this process."""

    def __init__(self, size):
        super().__init__(PerfectLinks())
        self._inboxes = [Queue() for _ in range(size)]

    def pass_on(self, tensor, group):
        """Put a copy into the next member's inbox, and wait for the previous one's."""
        self._inboxes[(group.position + 1) % group.size].put(tensor.clone())
        received = self._inboxes[group.position].get(timeout=20)
        return received, Pending((), self)


def members(size):
    """Return the ring as each of its members sees it."""
    ranks = tuple(range(size))
    return [MeshGroup(axis=Axis.CP, ranks=ranks, position=i, handle=None) for i in ranks]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_attends_to_as_many_keys(size):
    """Fails if causality leaves some ranks more work than others, or a token is lost."""
    held = [zigzag_tokens(TOKENS, group) for group in members(size)]
    assert len({int((positions + 1).sum()) for positions in held}) == 1
    assert torch.equal(torch.cat(held).sort().values, torch.arange(TOKENS))
    assert all(torch.equal(positions, positions.sort().values) for positions in held)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_ring_computes_attention_and_its_gradients(size):
    """Fails if a part is attended twice or not at all, or a gradient does not come home."""
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(2, 2, TOKENS, 8, generator=generator) for _ in range(4)]
    plain = [tensor.clone().requires_grad_() for tensor in whole[:3]]
    expected = torch.nn.functional.scaled_dot_product_attention(*plain, is_causal=True)
    expected.backward(whole[3])
    ring = Threads(size)

    def run(group):
        own = zigzag_tokens(TOKENS, group)
        inputs = [tensor[:, :, own].requires_grad_() for tensor in whole[:3]]
        output = ring_attention(*inputs, group, ring)
        output.backward(whole[3][:, :, own])
        return own, output.detach(), [tensor.grad for tensor in inputs]

    with ThreadPoolExecutor(size) as pool:
        for own, output, grads in pool.map(run, members(size)):
            torch.testing.assert_close(output, expected[:, :, own])
            for grad, tensor in zip(grads, plain, strict=True):
                torch.testing.assert_close(grad, tensor.grad[:, :, own])


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
