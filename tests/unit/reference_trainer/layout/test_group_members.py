"""Groups that lie along several axes of the mesh."""

from __future__ import annotations

from itertools import permutations

import pytest

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.layout.group_members import (
    expert_groups,
    expert_replica_groups,
    groups_over,
    replica_groups,
    shard_groups,
    sum_groups,
)


def test_replicas_lie_along_data_and_context():
    """Fails if gradients are summed over ranks with other weights, or miss some tokens."""
    layout = ParallelLayout(tp=2, pp=2, dp=2, cp=2)
    assert replica_groups(layout)[0] == (0, 2, 4, 6)
    assert groups_over(layout, ("dp", "cp", "tp"))[1] == tuple(range(8, 16))


@pytest.mark.parametrize("order", list(permutations(("pp", "dp", "cp", "tp"))))
def test_members_are_in_the_order_that_torch_gives_them(order):
    """Fails if a rank takes another part of a sum for its own, as torch sorts the ranks of groups."""
    layout = ParallelLayout(tp=2, pp=2, dp=4, cp=2, ep=4, order="-".join(order))
    kinds = [*sum_groups(layout).values(), expert_groups(layout), *shard_groups(layout, 4)]
    assert all(list(members) == sorted(members) for groups in kinds for members in groups)


def test_experts_are_shared_by_neighbours_among_the_replicas():
    """Fails if a rank finds its experts twice in its group, or their gradients are not summed."""
    layout = ParallelLayout(dp=4, ep=2)
    assert expert_groups(layout) == [(0, 1), (2, 3)]
    assert expert_replica_groups(layout) == [(0, 2), (1, 3)]


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(tp=2, pp=2, dp=4, cp=2, ep=4),
        ParallelLayout(tp=2, pp=3, dp=2, cp=3, ep=2, order="dp-pp-tp-cp"),
    ],
)
def test_every_rank_is_in_one_group_of_each_kind(layout):
    """Fails if a rank would wait in a group that it does not belong to, or be in none."""
    for groups in (replica_groups(layout), expert_groups(layout), expert_replica_groups(layout)):
        ranks = [rank for members in groups for rank in members]
        assert sorted(ranks) == list(range(layout.world_size))
    assert {len(members) for members in expert_groups(layout)} == {layout.ep}
