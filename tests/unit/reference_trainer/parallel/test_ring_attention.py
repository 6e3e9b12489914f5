"""Ring attention: who holds which tokens, and that parts add up to the whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest
import torch

from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.parallel.comm import Communicator, Pending, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import MeshGroup
from meshscope.reference_trainer.parallel.ring_attention import ring_attention, zigzag_tokens

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
