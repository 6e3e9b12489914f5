"""Replays of a contracted graph in many lanes at once, in little memory.

A level is worked through in chunks that stay in the cache of a processor core. All nodes
of a chunk have the same number of incoming edges, so that the latest of them is a maximum
over an axis. The time of a node is held from its level to the last one that looks at it:
what is alive at once is a few nodes a rank, however many there are in a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ...formulas.schedules.engine import Graph
from ...tables.arrays import FloatArray, IntArray
from ...tables.sorting import order_of
from .contraction import Contraction
from .effect_folding import EdgeEffect

NarrowArray = npt.NDArray[np.int32]

CHUNK_VALUES = 1 << 15
"""Most times of edges in a chunk (256 KiB), lanes included."""
NARROW = 16
"""Edges of a node up to which a pass over all nodes for each takes less than a maximum over an axis."""
MAX_PRODUCT = 1 << 18
"""Most multiplications of a matrix product: for so few of them the usual libraries of linear
algebra start no threads, which would cost more than they save."""


class LaneTimes(NamedTuple):
    """Times of one block of lanes."""

    nodes: FloatArray
    """Of the wanted nodes, ``(wanted, lanes)``."""
    waiting_ns: FloatArray
    """Sum over all waits, one value a lane."""


class CauseWeights(NamedTuple):
    """What the causes add to the edges of a graph, in the order of its levels."""

    edge: IntArray
    """Edges that any cause touches, rising."""
    ns: FloatArray
    """``(touched edges, causes)``."""


class _Chunk(NamedTuple):
    """Nodes of one level with the same number of incoming edges, as slices."""

    edges: slice
    nodes: slice
    fan: int
    waited: slice
    touched: slice
    early: slice


def cause_weights(effects: Sequence[EdgeEffect], edges: int) -> CauseWeights:
    """Return causes side by side, on those of so many edges that any of them touches."""
    touched = np.zeros(edges, dtype=bool)
    for effect in effects:
        touched[effect.edge] = True
    edge = np.flatnonzero(touched).astype(np.int32)
    place = np.cumsum(touched, dtype=np.int32) - np.int32(1)
    ns = np.zeros((len(edge), len(effects)))
    for cause, effect in enumerate(effects):
        ns[place[effect.edge], cause] = effect.ns
    return CauseWeights(edge, ns)


class LaneReplay(msgspec.Struct, frozen=True, kw_only=True):
    """A contracted graph with weights, laid out for replay."""

    source: NarrowArray
    """Slot of the source of each edge, in the order of the levels."""
    target: NarrowArray
    """Slot of each node with incoming edges, in the order of the levels."""
    offset_ns: FloatArray
    """Of these nodes."""
    roots: NarrowArray
    wanted: NarrowArray
    """Slots of the roots, and of the nodes whose times are wanted."""
    slots: int
    """How many times are held at once, of each lane."""
    waited: NarrowArray
    """Edges at whose source a wait begins, rising."""
    waited_for: NarrowArray
    """Slots of what they wait for."""
    early: NarrowArray
    """Which of these waits may end before what they wait for, rising."""
    early_end: NarrowArray
    """Edges that end these."""
    base_ns: FloatArray
    """Weight of each edge with no cause present."""
    causes: CauseWeights
    levels: IntArray
    """First node of each run of nodes with one level and number of edges, and their end."""
    fan: IntArray
    """Number of edges of a node in each run."""

    def times(self, keep: FloatArray, root_ns: FloatArray) -> LaneTimes:
        """Return the times of the wanted nodes in every lane, and how long ranks stood waiting.

        Args:
            keep: Which causes are present in each lane, 0..1, ``(causes, lanes)``.
            root_ns: Time of each root, ``(roots, lanes)``.
        """
        held = np.empty((self.slots, keep.shape[1]))
        held[self.roots] = root_ns
        waiting = np.zeros(keep.shape[1])
        edge, weight = self.causes
        for chunk in self._chunks(keep):
            reached = held.take(self.source[chunk.edges], axis=0)
            reached += self.base_ns[chunk.edges, None]
            if chunk.touched.stop > chunk.touched.start:
                rows = edge[chunk.touched] - chunk.edges.start
                reached[rows] += weight[chunk.touched] @ keep
            latest = _latest(reached, chunk.fan)
            latest += self.offset_ns[chunk.nodes, None]
            held[self.target[chunk.nodes]] = latest
            if chunk.waited.stop > chunk.waited.start:
                gap = held.take(self.waited_for[chunk.waited], axis=0)
                if chunk.early.stop > chunk.early.start:
                    place = self.early[chunk.early] - chunk.waited.start
                    end = reached.take(self.early_end[chunk.early] - chunk.edges.start, axis=0)
                    gap[place] = np.minimum(gap[place], end)
                gap -= reached.take(self.waited[chunk.waited] - chunk.edges.start, axis=0)
                waiting += np.maximum(gap, 0.0, out=gap).sum(axis=0)
        return LaneTimes(held[self.wanted], waiting)

    def _chunks(self, keep: FloatArray) -> Iterator[_Chunk]:
        """Yield the chunks in the order of the levels."""
        causes, lanes = keep.shape
        most = min(CHUNK_VALUES // lanes, MAX_PRODUCT // (max(causes, 1) * lanes))
        first, edges, fan = _cut(self.levels, self.fan, most)
        waited = np.searchsorted(self.waited, edges).tolist()
        touched = np.searchsorted(self.causes.edge, edges).tolist()
        early = np.searchsorted(self.waited[self.early], edges).tolist()
        borders = map(pairwise, (edges.tolist(), first.tolist(), waited, touched, early))
        for edge, node, wait, touch, left, width in zip(*borders, fan.tolist(), strict=True):
            yield _Chunk(
                slice(*edge), slice(*node), width, slice(*wait), slice(*touch), slice(*left)
            )


def _latest(reached: FloatArray, fan: int) -> FloatArray:
    """Return the greatest of each ``fan`` rows, as a new array."""
    if fan == 1:
        return reached.copy()
    if fan > NARROW:
        return np.asarray(reached.reshape(-1, fan, reached.shape[1]).max(axis=1))
    latest = np.maximum(reached[0::fan], reached[1::fan])
    for nth in range(2, fan):
        np.maximum(latest, reached[nth::fan], out=latest)
    return latest


def _cut(runs: IntArray, fan: IntArray, most: int) -> tuple[IntArray, IntArray, IntArray]:
    """Cut runs of nodes so that no piece has more than so many edges, or it has one node.

    Returns:
        The first node of each piece and the end of the last, the same of their edges, and
        the number of edges of a node in each piece.
    """
    size = np.maximum(most // fan, 1)
    count = np.diff(runs)
    pieces = -(-count // size)
    run = np.repeat(np.arange(len(fan)), pieces)
    place = np.arange(len(run)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = np.append(runs[run] + place * size[run], runs[-1])
    edges = np.append(0, np.cumsum(np.diff(first) * fan[run]))
    return first, edges, fan[run]


def level_places(graph: Graph) -> NarrowArray:
    """Return where each edge, in the caller's order, stands in the order of the levels."""
    place = np.empty(len(graph.edge), np.int32)
    place[graph.edge] = np.arange(len(graph.edge), dtype=np.int32)
    return place


def lane_replay(
    contraction: Contraction,
    base_ns: FloatArray,
    causes: CauseWeights,
    wanted: IntArray,
    place: NarrowArray,
) -> LaneReplay:
    """Return a contracted graph laid out for replay.

    Args:
        contraction: The graph.
        base_ns: Weight of every edge with no cause present, in the order of the graph's levels.
        causes: What each cause adds, in the same order.
        wanted: Nodes whose times are asked for.
        place: As ``level_places`` gives it.
    """
    graph = contraction.graph
    waited, waited_for, wait_ends = _in_level_order(contraction, place)
    early = np.flatnonzero(wait_ends >= 0).astype(np.int32)
    # The root of a broadcast need not wait for those that it sends to.
    early = early[_least_ns(base_ns, causes, wait_ends[early]) < 0]
    first = np.flatnonzero(np.append(True, graph.target[1:] != graph.target[:-1]))
    first = first[: len(graph.target)]
    node = graph.target[first]
    fan = np.diff(np.append(first, len(graph.target)))
    borders = np.searchsorted(first, graph.level_bounds)
    level = np.repeat(np.arange(len(borders) - 1, dtype=np.int32), np.diff(borders))
    slot, slots = _slots(graph, (node, level, borders), (waited, waited_for), wanted)
    opens = np.append(True, (fan[1:] != fan[:-1]) | (level[1:] != level[:-1]))[: len(first)]
    return LaneReplay(
        source=slot[graph.source],
        target=slot[node],
        offset_ns=graph.offset_ns[node],
        roots=slot[graph.roots],
        wanted=slot[wanted],
        slots=slots,
        waited=waited,
        waited_for=slot[waited_for],
        early=early,
        early_end=wait_ends[early],
        base_ns=base_ns,
        causes=causes,
        levels=np.append(np.flatnonzero(opens), len(first)),
        fan=fan[opens],
    )


def _least_ns(base_ns: FloatArray, causes: CauseWeights, edge: IntArray) -> FloatArray:
    """Return the least weight of some edges, with only those causes present that make them shorter."""
    least = base_ns[edge]
    if len(causes.edge) and len(edge):
        at = np.minimum(np.searchsorted(causes.edge, edge), len(causes.edge) - 1)
        shorter = np.minimum(causes.ns[at], 0.0).sum(axis=1)
        least += np.where(causes.edge[at] == edge, shorter, 0.0)
    return least


def _in_level_order(
    contraction: Contraction, place: NarrowArray
) -> tuple[NarrowArray, IntArray, NarrowArray]:
    """Return the waited edges in the order of the graph's levels, what for, and the ends (or -1)."""
    # A place is waited at once at most.
    waits = np.full(len(place), -1, np.int32)
    waits[place[contraction.waited]] = np.arange(len(contraction.waited), dtype=np.int32)
    edge = np.flatnonzero(waits >= 0).astype(np.int32)
    order = waits[edge]
    ends = contraction.wait_ends[order]
    ends = np.where(ends >= 0, place[ends], np.int32(-1))
    return edge, contraction.waited_for[order], ends


def _slots(
    graph: Graph,
    nodes_by_level: tuple[IntArray, IntArray, IntArray],
    waits: tuple[NarrowArray, IntArray],
    wanted: IntArray,
) -> tuple[NarrowArray, int]:
    """Return where the time of each node is held, and how many places there are.

    A place is free again after the last level that looks at its node.

    Args:
        graph: The graph.
        nodes_by_level: The nodes with incoming edges in the order of their levels, the level of each,
            and where the levels begin and the last one ends.
        waits: Waited edges, and the nodes that they are for.
        wanted: Nodes that are looked at in the end.
    """
    node, level_of, borders = nodes_by_level
    levels = len(borders) - 1
    last = _last_use(graph, waits)
    last[wanted] = levels
    last[node] = np.maximum(last[node], level_of)
    leaving = order_of(last)
    left = np.searchsorted(last[leaving], np.arange(levels + 1))
    slot = np.empty(graph.node_count, np.int32)
    slot[graph.roots] = np.arange(len(graph.roots))
    free, top, used = np.empty(graph.node_count, np.int32), 0, len(graph.roots)
    for level in range(levels):
        nodes = node[borders[level] : borders[level + 1]]
        reused = min(top, len(nodes))
        slot[nodes[:reused]] = free[top - reused : top]
        slot[nodes[reused:]] = np.arange(used, used + len(nodes) - reused)
        used += len(nodes) - reused
        top -= reused
        gone = slot[leaving[left[level] : left[level + 1]]]
        free[top : top + len(gone)] = gone
        top += len(gone)
    return slot, used


def _last_use(graph: Graph, waits: tuple[NarrowArray, IntArray]) -> NarrowArray:
    """Return the last level that looks at each node; 0 where none does."""
    levels = len(graph.level_bounds) - 1
    level = np.repeat(np.arange(levels, dtype=np.int32), np.diff(graph.level_bounds))
    last = np.zeros(graph.node_count, np.int32)
    # Levels rise along the edges, and of equal places the last value stays.
    last[graph.source] = level
    edge, waited_for = waits
    waiting = np.zeros(graph.node_count, np.int32)
    waiting[waited_for] = level[edge]
    return np.maximum(last, waiting)
