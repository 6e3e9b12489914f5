"""The replay graph of one step of one pipeline that follows a schedule.

A pass begins when its rank is free and its input has come, and a message arrives
``p2p`` after the later of both (the receiver blocks). After its last pass a rank
has a *tail*: gradient synchronisation and optimizer. Lanes may stand for scenarios,
steps or replicas.

``Graph.replay`` serves scenarios that change a few causes. Here every edge of every
lane has a weight of its own, as a simulated job needs; integers keep a sum of any
length exact.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ...tables.arrays import IntArray
from .engine import Graph, build_graph
from .plan import PASS_KINDS, Plan


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


_FORWARD, _BACKWARD, _INPUT, _WEIGHT = range(len(PASS_KINDS))


class PassCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of the passes by stage in model order, ns; stages may differ."""

    forward_ns: IntArray
    backward_input_ns: IntArray
    backward_weight_ns: IntArray

    def of_passes(self, plan: Plan) -> IntArray:
        """Return the duration of every pass; an unsplit backward pass does both halves."""
        by_kind = np.zeros((len(PASS_KINDS), len(self.forward_ns)), np.int64)
        by_kind[_FORWARD] = self.forward_ns
        by_kind[_BACKWARD] = self.backward_input_ns + self.backward_weight_ns
        by_kind[_INPUT] = self.backward_input_ns
        by_kind[_WEIGHT] = self.backward_weight_ns
        return np.asarray(by_kind[plan.kind, plan.stage])


class ScheduleTimes(msgspec.Struct, frozen=True):
    """When everything happens, ns after the start of the step; the last axis is the lane."""

    start_ns: IntArray
    """Of every pass: its input is there and its rank is free."""
    end_ns: IntArray
    finish_ns: IntArray
    """Of every rank, after its tail."""

    @property
    def makespan_ns(self) -> IntArray:
        """Return the length of the step in every lane."""
        return np.asarray(self.finish_ns.max(axis=0))


class ScheduleGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The graph, and which edges carry which duration.

    Nodes are, in this order: starts of passes, ends of passes, finishes of ranks,
    roots of ranks. Edges are: from the rank's own last deed to a start, from a needed
    pass to a start, from start to end, from the last end to the finish.
    """

    plan: Plan
    graph: Graph

    def weights(self, pass_ns: IntArray, p2p_ns: IntArray, tail_ns: IntArray) -> IntArray:
        """Return the weight of every edge, ``(edges, lanes)``.

        Args:
            pass_ns: ``(passes,)`` or ``(passes, lanes)``.
            p2p_ns: Of the message that a pass receives, same shapes or a scalar.
            tail_ns: ``(ranks,)`` or ``(ranks, lanes)``.
        """
        parts = [_in_lanes(part) for part in (pass_ns, p2p_ns, tail_ns)]
        lanes = max(part.shape[1] for part in parts)
        passes, ranks = len(self.plan), self.plan.ranks
        durations = np.broadcast_to(parts[0], (passes, lanes))
        wire = np.where(self.plan.crosses[:, None], np.broadcast_to(parts[1], (passes, lanes)), 0)
        tails = np.broadcast_to(parts[2], (ranks, lanes))
        return np.concatenate([wire, wire[self.plan.needs >= 0], durations, tails])

    def times(
        self, pass_ns: IntArray, p2p_ns: IntArray | int = 0, tail_ns: IntArray | int = 0
    ) -> ScheduleTimes:
        """Return when every pass starts and ends; arguments as for ``weights``."""
        tails = np.broadcast_to(_in_lanes(tail_ns), (self.plan.ranks, _in_lanes(tail_ns).shape[1]))
        weight = self.weights(pass_ns, np.asarray(p2p_ns), tails)
        roots = np.zeros((self.plan.ranks, weight.shape[1]), np.int64)
        found = replay_lanes(self.graph, weight, roots)
        passes = len(self.plan)
        return ScheduleTimes(
            found[:passes], found[passes : 2 * passes], found[2 * passes :][: self.plan.ranks]
        )


def _in_lanes(values: IntArray | int) -> IntArray:
    array = np.asarray(values, dtype=np.int64)
    return array.reshape(1, 1) if array.ndim == 0 else array.reshape(len(array), -1)


def schedule_graph(plan: Plan) -> ScheduleGraph:
    """Return the graph of one step.

    Raises:
        ValueError: The orders of the ranks would deadlock.
    """
    passes, rows = len(plan), np.arange(len(plan))
    finish = 2 * passes + np.arange(plan.ranks)
    root = finish + plan.ranks
    before = np.where(plan.is_first, root[plan.rank], passes + rows - 1)
    needing = np.flatnonzero(plan.needs >= 0)
    source = np.concatenate(
        [before, passes + plan.needs[needing], rows, passes + np.flatnonzero(plan.is_last)]
    )
    target = np.concatenate([rows, needing, passes + rows, finish])
    zeros = np.zeros(2 * passes + 2 * plan.ranks)
    return ScheduleGraph(plan=plan, graph=build_graph(source, target, zeros, zeros))


def replayed_bubble_frac(plan: Plan, costs: PassCosts) -> float:
    """Return the idle share of a step that has no communication, by replay.

    It serves every schedule, also those without a closed form; with equal stages
    it is the bubble that the schedule itself imposes.
    """
    pass_ns = costs.of_passes(plan)
    step_ns = int(schedule_graph(plan).times(pass_ns).makespan_ns[0])
    return 1.0 - float(pass_ns.sum()) / (plan.ranks * step_ns) if step_ns else 0.0
