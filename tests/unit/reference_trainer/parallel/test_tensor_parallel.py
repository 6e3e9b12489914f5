"""Tensor parallelism: what is sliced, and how often ranks talk."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from meshscope.reference_trainer.config.config import ModelConfig
from meshscope.reference_trainer.model.model import Block
from meshscope.reference_trainer.parallel.tensor_parallel import (
    ColumnLinear,
    RowLinear,
    TensorSplit,
    cross_entropy,
    embed,
    own_rows,
)

BLOCK = ModelConfig()


def passed_through_a_block(split):
    """Run a block forward and backward; return what it issued in either."""
    comm = split.comm
    block = Block(BLOCK, torch.Generator().manual_seed(0), split)
    share = split.group.size if split.sequence else 1
    hidden = torch.randn(2, BLOCK.seq_len // share, BLOCK.hidden, requires_grad=True)
    output = block(hidden)
    assert output.shape == hidden.shape
    forward = Counter(comm.counts)
    output.sum().backward()
    return forward, comm.counts - forward


def test_a_block_costs_two_all_reduces_each_way(comm, group_of_two):
    """Fails if a layer talks more often than the scheme needs, or less than it must."""
    ways = passed_through_a_block(TensorSplit(group_of_two, comm))
    assert ways == (Counter(all_reduce=2), Counter(all_reduce=2))


def test_sequence_parallelism_gathers_as_often_as_it_scatters(comm, group_of_two):
    """Fails if splitting the tokens costs more than the all-reduces that it replaces."""
    ways = passed_through_a_block(TensorSplit(group_of_two, comm, sequence=True))
    both = Counter(all_gather=2, reduce_scatter=2)
    assert ways == (both, both)


@pytest.mark.parametrize("sequence", [False, True])
def test_the_weight_half_of_a_split_backward_communicates_nothing(comm, group_of_two, sequence):
    """Fails if a zero-bubble schedule would pay for tensor parallelism twice."""
    split = TensorSplit(group_of_two, comm, sequence)
    block = Block(BLOCK, torch.Generator().manual_seed(0), split)
    hidden = torch.randn(2, BLOCK.seq_len // (1 + sequence), BLOCK.hidden, requires_grad=True)
    output = block(hidden)
    _, parameter_groups = stage_backward_input(
        [output], [torch.ones_like(output)], [hidden], block.parameters()
    )
    before = comm.issued
    stage_backward_weight(block.parameters(), parameter_groups)
    assert comm.issued == before
    assert all(parameter.grad is not None for parameter in block.parameters())


def test_columns_of_both_ranks_are_the_full_outputs(comm, group_of_two):
    """Fails if an output is computed twice or by nobody, or parts are mixed up."""
    weight = torch.arange(12 * 3, dtype=torch.float32).view(12, 3)
    low, high = (
        ColumnLinear(weight, 3, TensorSplit(replace(group_of_two, position=position), comm)).weight
        for position in range(2)
    )
    parts = [rows.view(3, 2, 3) for rows in (low, high)]
    assert torch.equal(torch.cat(parts, dim=1).view(12, 3), weight)


def test_rows_of_both_ranks_sum_to_the_full_product(comm, group_of_two):
    """Fails if an input is used twice or by nobody."""
    weight, inputs = torch.randn(4, 6), torch.randn(5, 6)
    halves = [
        RowLinear(weight, TensorSplit(replace(group_of_two, position=position), comm)).weight
        for position in range(2)
    ]
    summed = sum(part @ half.T for part, half in zip(inputs.chunk(2, 1), halves, strict=True))
    torch.testing.assert_close(summed, inputs @ weight.T)


def test_gradients_are_those_of_plain_linear_layers(comm, alone):
    """Fails if a hand-written backward differs from autograd's."""
    weight = torch.randn(8, 6, dtype=torch.float64)
    hidden = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    split = TensorSplit(alone, comm)
    for layer in (ColumnLinear(weight, 1, split), RowLinear(weight, split)):
        layer.double()
        parameters = tuple(layer.parameters())

        def run(inputs, *_parameters, layer=layer):
            return layer(inputs)

        assert torch.autograd.gradcheck(run, (hidden, *parameters))


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
