"""A backward in two halves does each half's work once."""

from __future__ import annotations

import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from meshscope.reference_trainer.config.config import ModelConfig
from meshscope.reference_trainer.model.model import Block
from meshscope.reference_trainer.parallel.tensor_parallel import TensorSplit


def test_the_weights_half_communicates_nothing(comm, group_of_two):
    """Fails if splitting the backward repeats the all-reduces of tensor parallelism."""
    block = Block(ModelConfig(), torch.Generator().manual_seed(0), TensorSplit(group_of_two, comm))
    inputs = torch.randn(2, 32, 64, requires_grad=True)
    output = block(inputs).square().mean()
    _, groups = stage_backward_input([output], None, [inputs], block.parameters())
    assert comm.issued == 4
    stage_backward_weight(block.parameters(), groups)
    assert comm.issued == 4


def test_both_halves_together_are_the_whole_backward(comm, alone):
    """Fails if a hand-written backward skips a gradient that one of the halves wants."""
    block = Block(ModelConfig(), torch.Generator().manual_seed(0), TensorSplit(alone, comm))
    inputs = torch.randn(2, 32, 64, requires_grad=True)
    output = block(inputs).square().mean()
    (grad_inputs,), groups = stage_backward_input([output], None, [inputs], block.parameters())
    stage_backward_weight(block.parameters(), groups)
    halves = [parameter.grad.clone() for parameter in block.parameters()]
    block.zero_grad()
    again = inputs.detach().requires_grad_()
    block(again).square().mean().backward()
    torch.testing.assert_close(grad_inputs, again.grad)
    torch.testing.assert_close(halves, [parameter.grad for parameter in block.parameters()])
