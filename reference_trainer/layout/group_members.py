"""Which ranks form the groups that no single axis of the mesh gives: pure integers.

Replicas hold the same dense weights and see other tokens: they lie along dp and
cp together. Expert groups are blocks of ``ep`` neighbours among the replicas,
and ranks at the same place of all blocks hold the same experts::

    dp = 4, ep = 2      replicas          0 1 2 3
                        expert groups     0 1 | 2 3
                        expert replicas   0 2 | 1 3
"""

from __future__ import annotations

from collections.abc import Sequence

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.terms import Axis

Members = tuple[int, ...]
_SUMS = frozenset({"dp_cp", "dp_cp_tp", "expert_dp"})
"""``group_desc`` of groups that sum gradients along more than the axis dp."""
EMBEDDING = "embedding"
"""``group_desc`` of the pairs of stages that hold a copy each of a tied embedding."""


def groups_over(layout: ParallelLayout, axes: Sequence[str]) -> list[Members]:
    """Return the groups along several axes together, each by rising rank.

    torch sorts the ranks of a group, whatever order they are given in; a member's place in
    any other order would not be the part of a tensor that a collective brings it.
    """
    others = [axis for axis in MESH_AXES if axis not in axes]
    groups: dict[Members, list[int]] = {}
    for rank in range(layout.world_size):
        place = layout.coordinates(rank)
        groups.setdefault(tuple(place[axis] for axis in others), []).append(rank)
    return [tuple(members) for members in groups.values()]


def replica_groups(layout: ParallelLayout) -> list[Members]:
    """Return the groups over which gradients of dense weights are summed."""
    return groups_over(layout, ("dp", "cp"))


def expert_groups(layout: ParallelLayout) -> list[Members]:
    """Return the groups that share the experts of a layer."""
    return [
        replicas[begin : begin + layout.ep]
        for replicas in replica_groups(layout)
        for begin in range(0, len(replicas), layout.ep)
    ]


def expert_replica_groups(layout: ParallelLayout) -> list[Members]:
    """Return the groups over which gradients of experts are summed."""
    return [
        replicas[place :: layout.ep]
        for replicas in replica_groups(layout)
        for place in range(layout.ep)
    ]


def sum_groups(layout: ParallelLayout) -> dict[str, list[Members]]:
    """Return the groups that sum gradients along more than the axis dp, by their name."""
    found: dict[str, list[Members]] = {}
    if layout.cp > 1:
        found["dp_cp"] = replica_groups(layout)
    if layout.tp > 1:
        found["dp_cp_tp"] = groups_over(layout, ("dp", "cp", "tp"))
    if layout.ep > 1:
        found["expert_dp"] = expert_replica_groups(layout)
    return found


def axis_of_description(description: str) -> Axis | None:
    """Return the axis that a group of the trainer counts as, by its ``group_desc``.

    >>> axis_of_description("dp_cp").value, axis_of_description("default_pg")
    ('dp', None)
    """
    if description in _SUMS:
        return Axis.DP
    if description == EMBEDDING:
        return Axis.PP
    return Axis(description) if description in {*Axis} - {Axis.OTHER} else None


def shard_groups(layout: ParallelLayout, shard_ranks: int) -> tuple[list[Members], list[Members]]:
    """Return the groups that share a copy of the weights, and those that hold the same part of it.

    Args:
        layout: The mesh.
        shard_ranks: Neighbouring replicas per copy.
    """
    shards: list[Members] = []
    copies: list[Members] = []
    for replicas in replica_groups(layout):
        shards += [
            replicas[begin : begin + shard_ranks] for begin in range(0, len(replicas), shard_ranks)
        ]
        copies += [replicas[place::shard_ranks] for place in range(shard_ranks)]
    return shards, copies


def groups_of_axis(layout: ParallelLayout, axis: str) -> list[Members]:
    """Return the groups whose collectives count as those of an axis."""
    if axis == "dp":
        return replica_groups(layout)
    return expert_groups(layout) if axis == "ep" else list(layout.groups(axis))
