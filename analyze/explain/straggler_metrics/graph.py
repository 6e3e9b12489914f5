"""The replay graph of an NDTimeline job, and what was observed on it.

Nodes are the starts of all operations, then their ends, then one join for each
group of more than two. Operation ``k`` of replica ``r`` has the number
``k * replicas + r``; an array over operations and steps has one row for each.
All times are in seconds, as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...formulas.schedules.engine import build_graph
from ...tables.arrays import BoolArray, FloatArray, IntArray
from ..replay.offsets import Wave, build_waves
from .job import Pattern
from .rules import Dependencies

SETTLED_S = -1e-2
"""A wire time or launch delay at or below this is taken for a wrong clock and set to 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGraph:
    """Dependencies of all replicas."""

    waves: list[Wave]
    operations: int
    nodes: int
    communicates: BoolArray
    """Which operations end a wire time after the last start of their group."""


def job_graph(found: Dependencies, operations: int, replicas: int) -> JobGraph:
    """Return the graph of all replicas; they follow the same rules and meet in their groups.

    Args:
        found: The rules of one replica.
        operations: How many operations one replica has.
        replicas: How many replicas there are.

    Raises:
        ValueError: Operations wait for each other in a circle.
    """
    count = operations * replicas
    each = np.arange(replicas)
    groups = [[i * replicas + r for i in group] for group in found.groups for r in range(replicas)]
    groups += [
        [i * replicas + r for i in group for r in range(replicas)] for group in found.replicated
    ]
    edges = np.array(found.edges, np.int64).reshape(-1, 2)
    source = [((edges[:, :1] * replicas + each) + count).ravel()]
    target = [(edges[:, 1:] * replicas + each).ravel()]
    joins, into, out_of = _group_edges(groups, count)
    communicates = np.zeros(count, np.bool_)
    communicates[[i for group in groups for i in group]] = True
    alone = np.flatnonzero(~communicates)
    source += [alone, into]
    target += [alone + count, out_of]
    nodes = 2 * count + joins
    graph = build_graph(
        np.concatenate(source), np.concatenate(target), np.zeros(nodes), np.zeros(nodes)
    )
    return JobGraph(
        waves=build_waves(graph), operations=count, nodes=nodes, communicates=communicates
    )


def _group_edges(groups: Sequence[Sequence[int]], count: int) -> tuple[int, IntArray, IntArray]:
    """Return the number of joins, and the edges from starts over joins to ends."""
    source: list[int] = []
    target: list[int] = []
    joins = 0
    for group in groups:
        if len(group) > 2:
            join = 2 * count + joins
            joins += 1
            source += [*group, *[join] * len(group)]
            target += [*[join] * len(group), *[i + count for i in group]]
        else:
            source += [i for i in group for _ in group]
            target += [i + count for _ in group for i in group]
    return joins, np.array(source, np.int64), np.array(target, np.int64)


def observed_lengths(found: Dependencies, pattern: Pattern, replicas: int) -> FloatArray:
    """Return how long each operation takes by itself: wire time if it communicates, else duration.

    The wire time is own end minus the last start of the group.

    Args:
        found: The rules of one replica.
        pattern: The recorded times.
        replicas: How many replicas there are.
    """
    shape = (-1, replicas, len(pattern.steps))
    start, end = pattern.start_s.reshape(shape), pattern.end_s.reshape(shape)
    latest = start.copy()
    pairs = np.array([group for group in found.groups if len(group) == 2], np.int64).reshape(-1, 2)
    met = np.maximum(start[pairs[:, 0]], start[pairs[:, 1]])
    latest[pairs[:, 0]] = latest[pairs[:, 1]] = met
    for group in found.groups:
        if len(group) > 2:
            latest[list(group)] = start[list(group)].max(axis=0)
    for group in found.replicated:
        latest[list(group)] = start[list(group)].max(axis=(0, 1))
    communicates = [i for group in (*found.groups, *found.replicated) for i in group]
    length = pattern.dur_s.reshape(shape).copy()
    wire = end[communicates] - latest[communicates]
    wire[wire <= SETTLED_S] = 0.0
    length[communicates] = wire
    return length.reshape(pattern.start_s.shape)


def launch_delays(found: Dependencies, pattern: Pattern, replicas: int) -> FloatArray:
    """Return how long after its last dependency each operation started.

    One without dependencies is delayed against the first start of its step.
    Arguments are those of ``observed_lengths``.
    """
    shape = (-1, replicas, len(pattern.steps))
    start, end = pattern.start_s.reshape(shape), pattern.end_s.reshape(shape)
    ready = np.broadcast_to(start.min(axis=(0, 1)), shape[1:])
    ready = np.repeat(ready[None], len(start), axis=0)
    edges = np.array(sorted(found.edges, key=lambda edge: edge[1]), np.int64).reshape(-1, 2)
    if len(edges):
        first = np.flatnonzero(np.append(True, edges[1:, 1] != edges[:-1, 1]))
        ready[edges[first, 1]] = np.maximum.reduceat(end[edges[:, 0]], first, axis=0)
    delay = start - ready
    delay[delay <= SETTLED_S] = 0.0
    return np.asarray(delay.reshape(pattern.start_s.shape))
