"""Mixture of experts: routing, balance, capacity, and what a layer costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from meshscope.reference_trainer.config.parallel_config import MoeConfig
from meshscope.reference_trainer.model.moe import ExpertSplit, MoeMlp
from meshscope.reference_trainer.parallel.tensor_parallel import TensorSplit

HIDDEN, FFN = 6, 10


def layer(comm, alone, group=None, **settings):
    """Return a layer of four experts, with weights from one seed."""
    generator = torch.Generator().manual_seed(0)

    def draw(rows, columns):
        return torch.randn(rows, columns, generator=generator)

    config = MoeConfig(experts=4, **settings)
    split = ExpertSplit(config=config, group=group or alone, context=alone, loss_shares=1)
    return MoeMlp((HIDDEN, FFN), draw, TensorSplit(alone, comm), split)


def one_by_one(mlp, hidden, chosen_count=2):
    """Return the layer's output, computed for every token and expert on its own."""
    output = torch.zeros_like(hidden)
    for place in torch.cartesian_prod(*map(torch.arange, hidden.shape[:2])):
        token = hidden[*place]
        weights, chosen = torch.softmax(mlp.router @ token, 0).topk(chosen_count)
        for weight, expert in zip(weights / weights.sum(), chosen, strict=True):
            wide = torch.nn.functional.gelu(mlp.up[expert] @ token)
            output[*place] += weight * (mlp.down[expert] @ wide)
    return output


@pytest.mark.parametrize("settings", [{}, {"capacity_factor": 4.0}])
def test_a_token_gets_the_weighted_sum_of_its_experts(comm, alone, settings):
    """Fails if tokens, weights or experts are mixed up on the way, or roomy experts drop any."""
    mlp = layer(comm, alone, **settings)
    hidden = torch.randn(2, 5, HIDDEN)
    torch.testing.assert_close(mlp(hidden), one_by_one(mlp, hidden))


def test_what_exceeds_the_capacity_adds_nothing(comm, alone):
    """Fails if a full expert takes more, or a dropped token is garbled."""
    mlp = layer(comm, alone, experts_per_token=1, capacity_factor=1.0)
    mlp.routing_bias += torch.tensor([100.0, 0.0, 0.0, 0.0])
    hidden = torch.randn(1, 8, HIDDEN)
    reached = mlp(hidden)[0].abs().sum(dim=-1) > 0
    assert reached.tolist() == [True] * 2 + [False] * 6


def test_the_balance_loss_pulls_towards_experts_that_are_used_less(comm, alone):
    """Fails if the router may send everything to one expert at no cost."""
    mlp = layer(comm, alone, balance_weight=1.0)
    hidden = torch.randn(2, 5, HIDDEN)
    # No gradient comes from the output, so what the router gets is the balance loss.
    (mlp(hidden) * 0).sum().backward()
    scores = (hidden @ mlp.router.detach().T).requires_grad_()
    chosen = scores.topk(2).indices
    shares = torch.nn.functional.one_hot(chosen, 4).sum(2).float().mean(1) * 4 / 2
    (shares * torch.softmax(scores, -1).mean(1)).sum(-1).mean().backward()
    expected = scores.grad.flatten(0, 1).T @ hidden.flatten(0, 1)
    torch.testing.assert_close(mlp.router.grad, expected)


@pytest.mark.parametrize(("factor", "forward"), [(0.0, 3), (1.0, 2)])
def test_a_layer_costs_two_all_to_alls_each_way_and_counts_where_needed(
    comm, alone, group_of_two, factor, forward
):
    """Fails if rows travel more often, or a capacity still asks for counts."""
    mlp = layer(comm, alone, group=group_of_two, capacity_factor=factor)
    # Both experts of this rank get the same share, as an absent member sends nothing else.
    output = mlp(torch.randn(2, 4, HIDDEN, requires_grad=True))
    assert comm.counts - Counter(all_reduce=9) == Counter(all_to_all=forward)
    output.sum().backward()
    assert comm.counts["all_to_all"] == forward + 2


def test_ranks_hold_each_expert_once(comm, alone, group_of_two):
    """Fails if an expert is on both ranks or on none."""
    whole = layer(comm, alone)
    halves = [
        layer(comm, alone, group=replace(group_of_two, position=place)).up for place in (0, 1)
    ]
    assert torch.equal(torch.cat(halves), whole.up)


def test_the_weight_half_of_a_split_backward_sends_no_tokens(comm, alone, group_of_two):
    """Fails if a zero-bubble schedule would pay for the experts' exchange twice."""
    mlp = layer(comm, alone, group=group_of_two)
    hidden = torch.randn(2, 4, HIDDEN, requires_grad=True)
    output = hidden + mlp(hidden)
    _, parameter_groups = stage_backward_input(
        [output], [torch.ones_like(output)], [hidden], mlp.parameters()
    )
    before = comm.issued
    stage_backward_weight(mlp.parameters(), parameter_groups)
    assert comm.issued == before
    assert all(parameter.grad is not None for parameter in mlp.parameters())
