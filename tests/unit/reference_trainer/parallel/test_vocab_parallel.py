"""The split vocabulary: lookups, and how often the loss talks."""

from __future__ import annotations

from dataclasses import replace

import torch

from meshscope.reference_trainer.parallel.tensor_parallel import TensorSplit
from meshscope.reference_trainer.parallel.vocab_parallel import cross_entropy, embed, own_rows


def test_each_token_is_looked_up_on_one_rank(comm, group_of_two):
    """Fails if a token is embedded by both ranks or by none."""
    table, ids = torch.randn(8, 3), torch.arange(8).view(2, 4)
    splits = [TensorSplit(replace(group_of_two, position=place), comm) for place in range(2)]
    low, high = (embed(ids, own_rows(table, split), split) for split in splits)
    assert torch.equal(low + high, table[ids])
    assert torch.equal(low[1], torch.zeros(4, 3))


def test_the_loss_costs_two_all_reduces_and_no_logits_travel(comm, group_of_two):
    """Fails if split logits are gathered, or the backward communicates."""
    logits = torch.randn(2, 3, 4, requires_grad=True)
    loss = cross_entropy(
        logits, torch.zeros(2, 3, dtype=torch.int64), TensorSplit(group_of_two, comm)
    )
    loss.backward()
    assert comm.counts == {"all_reduce": 2}


def test_the_split_loss_has_the_gradient_of_its_formula(comm, group_of_two):
    """Fails if the hand-written backward is not the derivative of the forward.

    The other member of this group adds nothing, so labels of this half only count.
    """
    logits = torch.randn(2, 3, 4, requires_grad=True)
    labels = torch.tensor([[0, 1, 2], [3, 3, 1]])
    cross_entropy(logits, labels, TensorSplit(group_of_two, comm)).backward()
    plain = logits.detach().clone().requires_grad_()
    torch.nn.functional.cross_entropy(plain.flatten(0, 1), labels.flatten()).backward()
    torch.testing.assert_close(logits.grad, plain.grad)
