"""Each parameter's gradient is summed over the ranks that hold a summand."""

from __future__ import annotations

import torch
from torch import nn

from meshscope.reference_trainer.config.config import ModelConfig
from meshscope.reference_trainer.config.split_config import MoeConfig
from meshscope.reference_trainer.model.model import Block
from meshscope.reference_trainer.model.moe import ExpertSplit
from meshscope.reference_trainer.parallel.gradient_groups import (
    Reduction,
    by_reduction,
    reduced_over,
    reduction_of,
)
from meshscope.reference_trainer.parallel.tensor_parallel import TensorSplit


def reductions(block):
    """Return the names of a block's parameters by the group of their gradients."""
    found = {kind: set() for kind in Reduction}
    for name, parameter in block.named_parameters():
        found[reduction_of(parameter)].add(name)
    return found


def block_of(split, alone, experts=0):
    """Return one block."""
    config = MoeConfig(experts=experts)
    moe = ExpertSplit(config=config, group=alone, context=alone, loss_shares=1)
    generator = torch.Generator().manual_seed(0)
    return Block(ModelConfig(), generator, split, experts=moe if experts else None)


def test_what_sees_a_part_of_the_tokens_is_summed_over_all_of_them(comm, alone, group_of_two):
    """Fails if norms or biases drift apart between ranks that split the tokens."""
    found = reductions(block_of(TensorSplit(group_of_two, comm, sequence=True), alone))
    norms = {
        f"{norm}.{part}" for norm in ("attention_norm", "mlp_norm") for part in ("weight", "bias")
    }
    assert found[Reduction.REPLICAS_AND_TP] == norms | {"projection.bias", "mlp.down.bias"}
    found = reductions(block_of(TensorSplit(group_of_two, comm), alone))
    assert found[Reduction.REPLICAS_AND_TP] == set()


def test_experts_are_summed_over_their_own_replicas(comm, alone, group_of_two):
    """Fails if an expert's gradient is summed over ranks that hold another one."""
    found = reductions(block_of(TensorSplit(group_of_two, comm), alone, experts=2))
    assert found[Reduction.EXPERT_REPLICAS] == {"mlp.up", "mlp.down"}
    assert found[Reduction.REPLICAS_AND_TP] == {"mlp.router"}


def test_parameters_are_sorted_by_the_groups_that_are_needed():
    """Fails if a parameter is summed over the wrong ranks, or an empty group gets a reducer."""
    plain, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    reduced_over(Reduction.EXPERT_REPLICAS, other)
    found = by_reduction([other, plain])
    assert found == {Reduction.REPLICAS: [plain], Reduction.EXPERT_REPLICAS: [other]}
