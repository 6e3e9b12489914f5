"""Tensor parallelism: what is sliced, and how often ranks talk."""

from __future__ import annotations

from dataclasses import replace

import torch

from meshscope.reference_trainer.config import ModelConfig
from meshscope.reference_trainer.model import Block
from meshscope.reference_trainer.tensor_parallel import ColumnLinear, RowLinear


def test_a_block_costs_two_all_reduces_each_way(comm, group_of_two):
    """Fails if a layer talks more often than the scheme needs, or less than it must."""
    block = Block(ModelConfig(), torch.Generator().manual_seed(0), group_of_two, comm)
    output = block(torch.randn(2, 32, 64, requires_grad=True))
    assert comm.issued == 2
    output.sum().backward()
    assert comm.issued == 4


def test_columns_of_both_ranks_are_the_full_outputs(comm, group_of_two):
    """Fails if an output is computed twice or by nobody, or parts are mixed up."""
    weight = torch.arange(12 * 3, dtype=torch.float32).view(12, 3)
    low, high = (
        ColumnLinear(weight, 3, replace(group_of_two, position=position), comm).weight
        for position in range(2)
    )
    parts = [rows.view(3, 2, 3) for rows in (low, high)]
    assert torch.equal(torch.cat(parts, dim=1).view(12, 3), weight)


def test_rows_of_both_ranks_sum_to_the_full_product(comm, group_of_two):
    """Fails if an input is used twice or by nobody."""
    weight, inputs = torch.randn(4, 6), torch.randn(5, 6)
    halves = [
        RowLinear(weight, replace(group_of_two, position=position), comm).weight
        for position in range(2)
    ]
    summed = sum(part @ half.T for part, half in zip(inputs.chunk(2, 1), halves, strict=True))
    torch.testing.assert_close(summed, inputs @ weight.T)


def test_gradients_are_those_of_plain_linear_layers(comm, alone):
    """Fails if a hand-written backward differs from autograd's."""
    weight = torch.randn(8, 6, dtype=torch.float64)
    hidden = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    for layer in (ColumnLinear(weight, 1, alone, comm), RowLinear(weight, alone, comm)):
        layer.double()
        parameters = tuple(layer.parameters())

        def run(inputs, *_parameters, layer=layer):
            return layer(inputs)

        assert torch.autograd.gradcheck(run, (hidden, *parameters))
