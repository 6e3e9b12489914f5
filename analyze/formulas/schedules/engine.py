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

from dataclasses import dataclass

import numpy as np

from ...tables.arrays import FloatArray, IntArray
from ...tables.sorting import order_of

LANE_BLOCK = 64
"""Lanes computed together; bounds memory at nodes x 64 x 8 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
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
    source: IntArray, target: IntArray, root_ns: FloatArray, offset_ns: FloatArray
) -> Graph:
    """Return the graph with its edges sorted by level.

    Args:
        source: Where each edge comes from.
        target: Where it leads.
        root_ns: One time per node; used for nodes without incoming edges.
        offset_ns: One per node.

    Raises:
        ValueError: The edges form a cycle.
    """
    count = len(offset_ns)
    fan = np.bincount(target, minlength=count).astype(np.int32)
    level = _levels(source, target, fan)
    order = _sorted_edges(target, fan, level)
    target = target[order]
    sorted_level = level[target]
    borders = np.flatnonzero(np.append(True, sorted_level[1:] != sorted_level[:-1]))
    is_root = fan == 0
    return Graph(
        node_count=count,
        roots=np.flatnonzero(is_root),
        root_ns=root_ns[is_root],
        offset_ns=offset_ns,
        source=source[order],
        target=target,
        edge=order.astype(source.dtype, copy=False),
        level_bounds=np.append(borders, len(order)) if len(order) else np.zeros(1, np.int64),
    )


def _sorted_edges(target: IntArray, fan: IntArray, level: IntArray) -> IntArray:
    """Return the edges by level, then by number of edges of their target, then by target."""
    # One sort of the nodes, which are fewer, then one of the edges by place.
    place = np.empty(len(level), np.int32)
    wide = int(fan.max(initial=0)) + 1
    order = order_of(level * np.int64(wide) + fan)
    place[order] = np.arange(len(level), dtype=np.int32)
    return order_of(place[target])


def _levels(source: IntArray, target: IntArray, fan_in: IntArray) -> IntArray:
    """Return the longest number of edges that leads to each node, from the number of its own edges."""
    count = len(fan_in)
    order = order_of(source)
    heads = target[order]
    starts = np.append(0, np.cumsum(np.bincount(source, minlength=count)))
    del order
    missing = fan_in.copy()
    level, first = np.zeros(count, np.int32), np.empty(count, np.int32)
    frontier, depth, seen = np.flatnonzero(missing == 0), 0, 0
    while len(frontier):
        level[frontier] = depth
        seen += len(frontier)
        fan = starts[frontier + 1] - starts[frontier]
        before = np.cumsum(fan) - fan
        position = np.arange(fan.sum()) - np.repeat(before, fan) + np.repeat(starts[frontier], fan)
        reached = heads[position]
        np.subtract.at(missing, reached, np.int32(1))
        free = reached[missing[reached] == 0]
        # Each once: the last one to write stays.
        first[free] = np.arange(len(free), dtype=np.int32)
        frontier = free[first[free] == np.arange(len(free))]
        depth += 1
    if seen < count:
        raise ValueError(f"{count - seen} of {count} nodes depend on each other in a cycle")
    return level
