"""Context parallelism: who holds which tokens, and what attention costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from meshscope.reference_trainer.parallel.context_parallel import ContextSplit

TOKENS = 8


def exchanges(split):
    """Run attention forward and backward; return what either issued."""
    inputs = [torch.randn(1, 2, TOKENS, 4, requires_grad=True) for _ in range(3)]
    output = split.attention(*inputs)
    assert output.shape == inputs[0].shape
    forward = Counter(split.comm.counts)
    output.sum().backward()
    assert all(tensor.grad.shape == tensor.shape for tensor in inputs)
    return forward, split.comm.counts - forward


def test_exchanging_heads_costs_two_all_to_alls_each_way(comm, group_of_two):
    """Fails if queries, keys and values travel one by one."""
    ways = exchanges(ContextSplit(group_of_two, comm, "all_to_all"))
    assert ways == (Counter(all_to_all=2), Counter(all_to_all=2))


def test_a_ring_of_two_passes_once_forward_and_three_times_backward(comm, group_of_two):
    """Fails if keys travel further than they must: n - 1 times, their gradients n times."""
    ways = exchanges(ContextSplit(group_of_two, comm, "ring"))
    assert ways == (Counter(pass_on=1), Counter(pass_on=3))


@pytest.mark.parametrize("form", ["ring", "all_to_all"])
def test_a_group_of_one_holds_the_sequence_and_says_nothing(comm, alone, form):
    """Fails if a run without context parallelism pays for it."""
    split = ContextSplit(alone, comm, form)
    assert torch.equal(split.own_tokens(TOKENS), torch.arange(TOKENS))
    exchanges(split)
    assert comm.issued == 0


def test_each_form_has_its_own_cut(comm, group_of_two):
    """Fails if exchanged tokens are out of order, or a ring is unbalanced."""
    second = replace(group_of_two, position=1)
    assert ContextSplit(second, comm, "all_to_all").own_tokens(TOKENS).tolist() == [4, 5, 6, 7]
    assert ContextSplit(second, comm, "ring").own_tokens(TOKENS).tolist() == [2, 3, 4, 5]
