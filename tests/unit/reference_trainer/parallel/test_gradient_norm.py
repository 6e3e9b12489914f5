"""The norm over the whole mesh, and clipping by it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.config.config import ModelConfig
from meshscope.reference_trainer.config.parallel_config import MoeConfig
from meshscope.reference_trainer.model.model import Block
from meshscope.reference_trainer.model.moe import ExpertSplit
from meshscope.reference_trainer.parallel.gradient_norm import (
    GradientNorm,
    Piece,
    Reduction,
    by_reduction,
    copies_over,
    mark_split,
    reduced_over,
    reduction_of,
)
from meshscope.reference_trainer.parallel.tensor_parallel import TensorSplit


def test_gradients_above_the_limit_are_scaled_to_it(comm, alone):
    """Fails if clipping changes the direction, or leaves a longer gradient."""
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    norm = GradientNorm(1.0, [alone], comm).clip([Piece(one, 1) for one in gradients])
    assert norm.item() == 5.0
    scaled = torch.cat([one.flatten() for one in gradients])
    torch.testing.assert_close(scaled, torch.tensor([0.6, 0.0, 0.8]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("limit", [6.0, math.inf])
def test_gradients_below_the_limit_are_left_alone(comm, alone, limit):
    """Fails if a short gradient is scaled up, or an infinite limit makes it undefined."""
    gradient = torch.tensor([3.0, 4.0])
    GradientNorm(limit, [alone], comm).clip([Piece(gradient, 1)])
    assert gradient.tolist() == [3.0, 4.0]


def test_what_several_ranks_hold_counts_once(comm, alone):
    """Fails if a replicated gradient is counted once for every rank."""
    pieces = [Piece(torch.tensor([6.0]), 4), Piece(torch.tensor([4.0]), 1)]
    norm = GradientNorm(math.inf, [alone], comm).clip(pieces)
    assert norm.item() == pytest.approx(5.0)


def test_only_marked_parameters_are_split(alone):
    """Fails if a norm's weight is taken for a slice, or a slice for a copy."""
    split = mark_split(nn.Parameter(torch.ones(1)), Axis.TP)
    whole = nn.Parameter(torch.ones(1))
    assert [copies_over(Axis.TP, one, 8) for one in (split, whole)] == [1, 8]


def test_every_axis_is_added_up(comm, group_of_two):
    """Fails if the norm leaves out the ranks along an axis."""
    axes = [replace(group_of_two, axis=axis) for axis in (Axis.TP, Axis.PP, Axis.DP)]
    GradientNorm(1.0, axes, comm).clip([Piece(torch.ones(2), 1)])
    assert comm.collectives == {("all_reduce", group.axis): 1 for group in axes}


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
