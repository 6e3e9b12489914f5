"""Effects of causes on the edges of a contracted graph, by what they touch.

A cause touches few rows of a program: a slow rank those of one rank, jitter those of computing. Its weights
on the contracted edges are sums along the rank's own time line, as those of the whole program are
(``contraction``), but only edges behind a touched row are looked at.

What a cause adds is kept only where it adds anything. A slow rank or link touches a few edges of millions, and there are up to ten causes: as one
value for every edge they would be the largest arrays of an analysis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...tables.arrays import FloatArray, IntArray
from ...tables.sorting import order_of
from .contraction import Contraction, Origin


class EdgeEffect(NamedTuple):
    """Edges that a cause makes longer or shorter, and by how much."""

    edge: IntArray
    """Position in the order of the program, rising."""
    ns: FloatArray
    """Not 0."""

    def add_to(self, weight_ns: FloatArray) -> None:
        """Add the effect to the weights of all edges of the program, in place."""
        weight_ns[self.edge] += self.ns

    def part(self, first: int, count: int) -> EdgeEffect:
        """Return the effect on a run of edges, numbered from its first."""
        low, high = np.searchsorted(self.edge, (first, first + count))
        return EdgeEffect(self.edge[low:high] - first, self.ns[low:high])

    @property
    def is_nothing(self) -> bool:
        """Return whether no edge is touched."""
        return not len(self.edge)


def edge_effect(values: npt.ArrayLike, first: int = 0) -> EdgeEffect:
    """Return the effect that has some values on a run of edges, and none on the others.

    Args:
        values: ns, one an edge.
        first: The edge of the first value.
    """
    dense = np.asarray(values, dtype=np.float64)
    touched = np.flatnonzero(dense)
    return EdgeEffect((touched + first).astype(np.int32), dense[touched])


def as_effects(effects: FloatArray | Sequence[EdgeEffect]) -> Sequence[EdgeEffect]:
    """Return one effect a cause, also of a matrix ``(edges, causes)``."""
    if isinstance(effects, np.ndarray):
        return [edge_effect(column) for column in effects.T]
    return effects


FEW = 1 / 64
"""Share of the edges up to which those that are touched are sorted, rather than found among all."""
MANY = 2
"""Summands an edge from which on running sums over all touched rows take less time."""


class EffectFolding:
    """A contracted graph, made ready to fold any number of effects."""

    def __init__(self, contraction: Contraction, place: IntArray, ends: Origin) -> None:
        """Prepare the folding.

        Args:
            contraction: The graph.
            place: Where each edge stands in the order of the graph's levels.
            ends: Rows of which the times are wanted, too.
        """
        self._contraction, self._edges = contraction, len(place)
        edges, waits = contraction.edges, contraction.edges.waits
        members, kept = len(contraction.member.row), len(contraction.kept)
        first = members + kept
        # The ends come behind all edges.
        self._place = np.concatenate([place, len(place) + np.arange(len(ends.row), dtype=np.int32)])
        sources = (contraction.member, contraction.before, contraction.sole, ends)
        shared = len(contraction.kept_shared)
        begins = (0, members, first + shared, len(place))
        targets = [
            begin + np.arange(len(source.row), dtype=np.int32)
            for begin, source in zip(begins, sources, strict=True)
        ]
        self._paths, self._path_rows = _paths(sources, targets, len(edges.join))
        self._kept_rows = waits[contraction.kept]
        self._before = members
        self._edge_of_wait = np.full(len(waits), -1, np.int32)
        self._edge_of_wait[contraction.kept_shared] = first + np.arange(shared, dtype=np.int32)
        alone = np.arange(len(contraction.kept_alone), dtype=np.int32)
        self._edge_of_wait[contraction.kept_alone] = first + shared + alone
        self._held = len(edges.queue_join)

    def fold(self, work: EdgeEffect, wire: EdgeEffect) -> tuple[EdgeEffect, EdgeEffect]:
        """Return what an effect adds to the edges in the order of levels, and to the wanted rows.

        Args:
            work: By row; none at a wait that the contraction leaves out.
            wire: By operation that runs after another, then by wait.
        """
        at_wait, at = _found(self._kept_rows, work.edge)
        of_queue = wire.part(0, self._held)
        of_waits = wire.part(self._held, len(self._edge_of_wait))
        edge = self._edge_of_wait[of_waits.edge]
        on_path, rows = edge < 0, self._contraction.edges.waits
        parts = [
            self._along(work.edge[~at_wait], work.ns[~at_wait]),
            _Parts(self._before + at[at_wait], work.ns[at_wait]),
            self._along(rows[of_waits.edge[on_path]], of_waits.ns[on_path]),
            _Parts(edge[~on_path], of_waits.ns[~on_path]),
            _Parts(self._edges - self._held + of_queue.edge, of_queue.ns),
        ]
        edges, ns = (np.concatenate([part[n] for part in parts]) for n in range(2))
        found = _summed(self._place[edges], ns, len(self._place))
        return found.part(0, self._edges), found.part(self._edges, len(self._place) - self._edges)

    def _along(self, row: IntArray, ns: FloatArray) -> _Parts:
        """Return what times at rows, rising, add to the edges that come behind them on the same path."""
        first_of, head, last, target = self._paths
        first = first_of[row]
        inside = first < len(head)
        first, row, ns = first[inside], row[inside], ns[inside]
        count = np.where(head[first] <= row, last[first] - first, 0)
        total = int(count.sum())
        if total > MANY * len(head):
            return self._along_all(row, ns)
        before = np.cumsum(count) - count
        position = np.arange(total) + np.repeat(first - before, count)
        return _Parts(target[position], np.repeat(ns, count))

    def _along_all(self, row: IntArray, ns: FloatArray) -> _Parts:
        """Return the same from running sums: a long path behind many touched rows has too many summands."""
        _, head, _, target = self._paths
        begin = np.searchsorted(row, head)
        end = np.searchsorted(row, self._path_rows, side="right")
        touched = np.flatnonzero(end > begin)
        path = np.append(0.0, np.cumsum(ns))
        return _Parts(target[touched], path[end[touched]] - path[begin[touched]])


class _Parts(NamedTuple):
    """Summands of edges, in the caller's order."""

    edge: IntArray
    ns: FloatArray


class _Paths(NamedTuple):
    """Edges by the row that they come from."""

    first: IntArray
    """Of each row of the program, how many come from a row before it."""
    head: IntArray
    last: IntArray
    """Where the rows with the same head end."""
    target: IntArray
    """The edge, or the wanted row behind all edges."""


def _paths(
    sources: tuple[Origin, ...], targets: list[IntArray], rows: int
) -> tuple[_Paths, IntArray]:
    """Return the edges by row, and the row of each in that order."""
    row = np.concatenate([source.row for source in sources])
    order = order_of(row)
    head = np.concatenate([source.head for source in sources])[order]
    closes = np.flatnonzero(np.append(head[1:] != head[:-1], True)[: len(head)]).astype(np.int32)
    last = np.repeat(closes + 1, np.diff(closes, prepend=-1)).astype(np.int32)
    count = np.bincount(row, minlength=rows)
    first = np.cumsum(count, dtype=np.int32) - count.astype(np.int32)
    return _Paths(first, head, last, np.concatenate(targets)[order]), row[order]


def _found(known: IntArray, values: IntArray) -> tuple[np.ndarray, IntArray]:
    """Return which values are among known ones, both rising, and where."""
    if not len(known):
        return np.zeros(len(values), dtype=bool), np.zeros(len(values), np.int64)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return known[at] == values, at


def _summed(edge: IntArray, ns: FloatArray, count: int) -> EdgeEffect:
    """Return summands as one effect on so many edges."""
    if len(edge) < FEW * count:
        own, place = np.unique(edge, return_inverse=True)
    else:
        touched = np.zeros(count, dtype=bool)
        touched[edge] = True
        own = np.flatnonzero(touched)
        place = np.cumsum(touched, dtype=np.int32)[edge] - np.int32(1)
    total = np.bincount(place, ns, len(own))
    kept = total != 0
    return EdgeEffect(own[kept].astype(np.int32), total[kept])
