"""Times of a replay graph in integers, with weights that differ from lane to lane.

``Graph.replay`` serves scenarios that change a few causes. Here every edge of every
lane has a weight of its own, as a simulated job needs; integers keep a sum of any
length exact.
"""

from __future__ import annotations

import numpy as np

from ...tables.arrays import IntArray
from .engine import Graph


def replay_lanes(graph: Graph, weight_ns: IntArray, root_ns: IntArray) -> IntArray:
    """Return the time of every node in every lane.

    Args:
        graph: Its own offsets and root times are not used.
        weight_ns: Weight of every edge in the caller's order, ``(edges, lanes)``.
        root_ns: Time of every root in the order of ``graph.roots``, ``(roots, lanes)``.

    Returns:
        ``(nodes, lanes)`` in nanoseconds.
    """
    times = np.zeros((graph.node_count, root_ns.shape[1]), np.int64)
    times[graph.roots] = root_ns
    for low, high in zip(graph.level_bounds[:-1], graph.level_bounds[1:], strict=True):
        target = graph.target[low:high]
        reached = times[graph.source[low:high]] + weight_ns[graph.edge[low:high]]
        first = np.flatnonzero(np.append(True, target[1:] != target[:-1]))
        times[target[first]] = np.maximum.reduceat(reached, first, axis=0)
    return times
