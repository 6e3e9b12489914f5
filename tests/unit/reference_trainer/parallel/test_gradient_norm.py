"""The norm over the whole mesh, and clipping by it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.parallel.gradient_norm import (
    GradientNorm,
    Piece,
    copies_over,
    mark_split,
)


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
