"""The replay engine: longest paths through an explicit graph, over many scenarios at once.

A node ends at the latest of its dependencies plus an edge weight, plus an
offset of its own::

    t(v) = max over edges (u, v) of (t(u) + weight(u, v)) + offset(v)

Weights depend on the lane (scenario): ``base + effects . keep``, where ``keep``
says for each cause whether it is still there. One pass per topological level,
vectorised over the nodes of the level and the lanes. Semantics of nodes and
edges: the module that builds the graph (``program``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from ...tables.arrays import FloatArray, IntArray
from ...tables.sorting import order_of

LANE_BLOCK = 64
"""Lanes computed together; bounds memory at nodes x 64 x 8 bytes."""


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies in order of levels.

    Edges are sorted by the level of their target, then by how many edges that has, then
    by target, so that one level is one slice and one ``maximum.reduceat``.
    """

    node_count: int
    roots: IntArray
    root_ns: FloatArray
    """Times of the nodes without dependencies."""
    offset_ns: FloatArray
    """One per node."""
    source: IntArray
    target: IntArray
    edge: IntArray
    """Position of the sorted edge in the caller's own order; as wide as the caller's numbers."""
    level_bounds: IntArray
    """Slice borders of the levels in the sorted edges."""

    def replay(
        self,
        base_ns: FloatArray,
        effects: FloatArray,
        keep: FloatArray,
        root_shift_ns: FloatArray | None = None,
    ) -> FloatArray:
        """Return the time of every node in every lane.

        Args:
            base_ns: Weight of every edge with no cause present, caller's order, ``(edges,)``.
            effects: What each cause adds to every edge, ``(edges, causes)``.
            keep: Which causes are present in each lane, 0..1, ``(causes, lanes)``.
            root_shift_ns: What to add to the times of the roots, ``(roots, lanes)``.

        Returns:
            ``(nodes, lanes)`` in nanoseconds.
        """
        times = np.zeros((self.node_count, keep.shape[1]))
        times[self.roots] = self.root_ns[:, None]
        if root_shift_ns is not None:
            times[self.roots] += root_shift_ns
        base, effects = base_ns[self.edge], effects[self.edge]
        touched = np.asarray(effects.any(axis=1))
        for low, high in zip(self.level_bounds[:-1], self.level_bounds[1:], strict=True):
            target = self.target[low:high]
            reached = times[self.source[low:high]] + base[low:high, None]
            if touched[low:high].any():
                reached += effects[low:high] @ keep
            first = np.flatnonzero(np.append(True, target[1:] != target[:-1]))
            nodes = target[first]
            times[nodes] = np.maximum.reduceat(reached, first, axis=0) + self.offset_ns[nodes, None]
        return times


def build_graph(
    source: IntArray,
    target: IntArray,
    root_ns: FloatArray,
    offset_ns: FloatArray,
    once_from: Sequence[int] = (),
) -> Graph:
    """Return the graph with its edges sorted by level.

    Args:
        source: Where each edge comes from.
        target: Where it leads.
        root_ns: One time per node; used for nodes without incoming edges.
        offset_ns: One per node.
        once_from: First edges of blocks, up to the last edge, in each of which no node is a target
            twice: these need no sort.

    Raises:
        ValueError: The edges form a cycle.
    """
    count = len(offset_ns)
    fan = np.bincount(target, minlength=count).astype(np.int32)
    level = _levels(source, target, fan)
    # By level, then by number of edges, then by number.
    node = order_of(level * np.int64(int(fan.max(initial=0)) + 1) + fan)
    sizes = np.bincount(level, fan).astype(np.int64) if len(target) else np.zeros(0, np.int64)
    fan_of = fan[node]
    first = np.empty(count, np.int32)
    first[node] = np.cumsum(fan_of, dtype=np.int32) - fan_of
    place = _places(target, first, fan, once_from)
    from_node, edge = np.empty(len(place), source.dtype), np.empty(len(place), source.dtype)
    from_node[place] = source
    edge[place] = np.arange(len(place), dtype=source.dtype)
    is_root = fan == 0
    return Graph(
        node_count=count,
        roots=np.flatnonzero(is_root),
        root_ns=root_ns[is_root],
        offset_ns=offset_ns,
        source=from_node,
        target=np.repeat(node.astype(target.dtype, copy=False), fan_of),
        edge=edge,
        # Roots are the first level, without edges.
        level_bounds=np.append(0, np.cumsum(sizes[1:])),
    )


def _places(
    target: IntArray, first: IntArray, fan: IntArray, once_from: Sequence[int]
) -> npt.NDArray[np.int32]:
    """Return where each edge stands among all: those of a target one after the other, in their order.

    Args:
        target: Where each edge leads.
        first: The place of the first edge of each node.
        fan: How many edges each node has.
        once_from: As ``build_graph`` takes it.
    """
    borders = [*once_from, len(target)]
    place = np.empty(len(target), np.int32)
    several = target[: borders[0]]
    order = order_of(several)
    sorted_target = several[order]
    opens = np.flatnonzero(np.append(True, sorted_target[1:] != sorted_target[:-1])[: len(order)])
    size = np.diff(np.append(opens, len(order)))
    within = np.arange(len(order), dtype=np.int32) - np.repeat(opens.astype(np.int32), size)
    place[order] = first[sorted_target] + within
    free = first.copy()
    free[sorted_target[opens]] += size.astype(np.int32)
    for low, high in pairwise(borders):
        own = target[low:high]
        place[low:high] = free[own]
        free[own] += np.int32(1)
    return place


def _levels(source: IntArray, target: IntArray, fan_in: IntArray) -> IntArray:
    """Return the longest number of edges that leads to each node, from the number of its own edges."""
    count = len(fan_in)
    heads = target[order_of(source)]
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(source, minlength=count), out=starts[1:])
    missing = fan_in.copy()
    level, first = np.zeros(count, np.int32), np.empty(count, np.int32)
    frontier, depth, seen = np.flatnonzero(missing == 0), 0, 0
    while len(frontier):
        level[frontier] = depth
        seen += len(frontier)
        begin = starts[frontier]
        fan = starts[frontier + 1] - begin
        position = np.repeat(begin - np.cumsum(fan, dtype=np.int32) + fan, fan)
        position += np.arange(len(position), dtype=np.int32)
        reached = heads[position]
        np.subtract.at(missing, reached, np.int32(1))
        free = reached[missing[reached] == 0]
        # Each once: the last one to write stays.
        own = np.arange(len(free), dtype=np.int32)
        first[free] = own
        frontier = free[first[free] == own]
        depth += 1
    if seen < count:
        raise ValueError(f"{count - seen} of {count} nodes depend on each other in a cycle")
    return level
