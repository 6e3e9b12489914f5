"""Replay of a graph whose nodes carry the durations, with values of their own in every lane.

``replay`` scales causes on the edges of one recording. Here all edges weigh
nothing and each node adds its own offset::

    t(v, lane) = max over edges (u, v) of t(u, lane) + offset(v, lane)

so that the lanes can be steps, each with its recorded durations, times scenarios.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...formulas.schedules.engine import Graph
from ...tables.arrays import FloatArray, IntArray

MAX_COLUMNS = 4
"""Nodes with more dependencies are reduced one by one (the joins of large groups)."""


class Wave(NamedTuple):
    """The nodes of one level, as gathers of whole rows.

    A row is one node in all lanes. Gathering the first dependency of all nodes, then
    the second of those that have one, costs a tenth of a segmented reduction.
    """

    nodes: IntArray
    """Most dependencies first."""
    columns: tuple[IntArray, ...]
    """The k-th dependency of the first nodes."""
    wide: tuple[tuple[int, IntArray], ...]
    """Nodes with many dependencies, and these."""


def build_waves(graph: Graph) -> list[Wave]:
    """Return the levels of a graph in the order of replay."""
    return [
        _wave(graph.source[low:high], graph.target[low:high])
        for low, high in pairwise(graph.level_bounds.tolist())
    ]


def replay_offsets(waves: list[Wave], times: FloatArray) -> None:
    """Turn offsets into times, in place.

    Args:
        waves: The levels of the graph.
        times: ``(nodes, lanes)``: the offset of every node, then its time. A node without
            dependencies is at its offset.
    """
    for wave in waves:
        if wave.columns:
            reached = times[wave.columns[0]]
            for column in wave.columns[1:]:
                head = reached[: len(column)]
                np.maximum(head, times[column], out=head)
            times[wave.nodes] += reached
        for node, sources in wave.wide:
            times[node] += times[sources].max(axis=0)


def _wave(source: IntArray, target: IntArray) -> Wave:
    first = np.flatnonzero(np.append(True, target[1:] != target[:-1]))
    count = np.diff(np.append(first, len(target)))
    narrow = np.flatnonzero(count <= MAX_COLUMNS)
    order = narrow[np.argsort(-count[narrow], kind="stable")]
    deepest = int(count[order[0]]) if len(order) else 0
    columns = tuple(source[first[order[count[order] > k]] + k] for k in range(deepest))
    wide = tuple(
        (int(target[first[i]]), source[first[i] : first[i] + count[i]])
        for i in np.flatnonzero(count > MAX_COLUMNS).tolist()
    )
    return Wave(target[first[order]], columns, wide)
