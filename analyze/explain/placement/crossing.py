"""Bytes that leave each host in a step, for any order of the ranks over the hosts.

With v bytes sent by a rank of a group of n in a step::

    ring      a collective leaves each host of the group once, v bytes: rings are built host by host
              (NCCL's search does so); 0 where the group has one host
    exchange  an all-to-all sends v / (n - 1) to each other member
    forward   a context-parallel ring sends v to the next position, always in mesh order
    chain     a pipeline sends forward and backward between neighbours: n v over its directed
              borders, 2 (n - 1), or 2 n with several chunks a rank
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import permutations

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.terms import Axis

from ...tables.arrays import IntArray
from .members import Members, ranks_of_places

FloatArray = npt.NDArray[np.float64]


class Pattern(StrEnum):
    """Who sends to whom in a group."""

    RING = "ring"
    EXCHANGE = "exchange"
    FORWARD = "forward"
    CHAIN = "chain"


def groups_of(layout: ParallelLayout, axis: Axis) -> IntArray:
    """Return the ranks of all groups of an axis, (group, position) in mesh order.

    Expert groups are neighbours of the flattened (dp, cp) positions, cp varying fastest.
    """
    order = layout.order.split("-")
    ranks = np.arange(layout.world_size).reshape([getattr(layout, name) for name in order])
    if axis is not Axis.EP:
        at_end: IntArray = np.moveaxis(ranks, order.index(axis.value), -1)
        return at_end.reshape(-1, getattr(layout, axis.value))
    data = np.transpose(ranks, [order.index(name) for name in ("pp", "tp", "dp", "cp")])
    return data.reshape(-1, layout.ep)


def exits(
    layout: ParallelLayout,
    hosts: IntArray,
    axis: Axis,
    pattern: Pattern,
    members: Sequence[Members] = (),
) -> FloatArray:
    """Return the bytes that leave each host, where each rank sends one byte in a step, on average.

    Args:
        layout: The mesh; its order is the one to judge.
        hosts: (rank,) number of the host of each rank, 0 and up.
        axis: Whose groups.
        pattern: Who sends to whom.
        members: The groups of a ring or exchange where they are known; those of the mesh if left out.

    Returns:
        (host,) bytes for each byte that a rank sends.
    """
    count = int(hosts.max()) + 1
    if members and pattern in (Pattern.RING, Pattern.EXCHANGE):
        of_place = hosts[ranks_of_places(layout)]
        return sum(
            (_left(of_place[own.places], count, pattern, own.weight) for own in members),
            np.zeros(count),
        )
    places = hosts[groups_of(layout, axis)]
    size = places.shape[1]
    left = np.zeros(count)
    if size < 2:
        return left
    if pattern is Pattern.FORWARD:
        _add_edges(left, places, np.roll(places, -1, axis=1), 1.0)
        return left
    if pattern is Pattern.CHAIN:
        loops = layout.vpp > 1
        after = np.roll(places, -1, axis=1) if loops else places[:, 1:]
        before = places if loops else places[:, :-1]
        each = size / (2 * (size if loops else size - 1))
        _add_edges(left, before, after, each)
        _add_edges(left, after, before, each)
        return left
    return _left(places, count, pattern, np.ones(len(places)))


def _left(places: IntArray, count: int, pattern: Pattern, weight: FloatArray) -> FloatArray:
    """Return what groups send out of each host.

    Args:
        places: (group, member) host.
        count: Of hosts.
        pattern: Ring or exchange.
        weight: (group,) what a member sends.
    """
    members = places.shape[1]
    held = np.stack([(places == host).sum(axis=1) for host in range(count)], axis=1)
    if pattern is Pattern.EXCHANGE:
        away: FloatArray = weight @ (held * (members - held)) / (members - 1)
        return away
    crosses = (held > 0).sum(axis=1, keepdims=True) > 1
    once: FloatArray = weight @ ((held > 0) & crosses)
    return once


def _add_edges(left: FloatArray, start: IntArray, end: IntArray, each: float) -> None:
    outside = start != end
    left += each * np.bincount(start[outside], minlength=len(left))


def ring_turns(layout: ParallelLayout, hosts: IntArray, axis: Axis) -> int:
    """Return how often the groups' rings change host beyond once a host, the most of any group."""
    places = hosts[groups_of(layout, axis)]
    changes = (places != np.roll(places, -1, axis=1)).sum(axis=1)
    ordered = np.sort(places, axis=1)
    distinct = 1 + (np.diff(ordered, axis=1) != 0).sum(axis=1)
    return int((changes - np.where(distinct > 1, distinct, 0)).max())


def orders() -> Sequence[str]:
    """Return all orders of the axes, slowest first."""
    return ["-".join(order) for order in permutations(MESH_AXES)]
