"""The replay graph of a program without the nodes that only pass a time on.

A mark with one dependency is as late as that plus its weight; a wait that began when its
operation was issued ends with the operation, because nobody completes one before all have
issued it. Other operations may be issued between the two, and buffered sends waited for that take no
time: programs issue a send and a receive, and then wait for both. What is left are operations of several members, waits that may find their
operation complete, and the starts of the ranks. Times are the same as those of the whole
graph, with an order of magnitude fewer nodes.

Weights of the remaining edges are sums of the original ones along the rank's own time
line. They are linear, so that base weights and the effects of causes are folded alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ...formulas.schedules.engine import Graph, build_graph
from ...tables.arrays import BoolArray, FloatArray, IntArray

Heads = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], int]


class ProgramEdges(NamedTuple):
    """What of a program decides the contraction; rows are marks in program order."""

    is_root: BoolArray
    waits: IntArray
    """Rows of the waits."""
    join: IntArray
    """Operation of each row, -1 at an end."""
    issue: IntArray
    """Of each wait: the row that issued its operation."""
    is_instant: BoolArray
    """Rows that issue something at the time of the row before."""
    is_at_once: BoolArray
    """Of each wait: nothing was done since the row before."""
    wire_ns: FloatArray
    """Of each wait."""
    offset_ns: FloatArray
    """Of each wait."""
    member_row: IntArray
    member_join: IntArray
    """Which rows issued which operations."""
    queue_before: IntArray
    queue_join: IntArray
    """Which operations (of several members) begin after which others."""


class Origin(NamedTuple):
    """Where times of rows come from."""

    row: IntArray
    """Rows whose times are meant."""
    head: IntArray
    """The last row up to each of them that has a time of its own, or that of an operation."""
    node: IntArray
    """Node of the contracted graph behind that."""


class Contraction(msgspec.Struct, frozen=True, kw_only=True):
    """The contracted graph, and how weights of a program become its weights.

    Edges, in the caller's order: member to operation; the row before to a kept wait; begin of an
    operation to a kept wait; sole issue of an operation to a kept wait; operation to its begin,
    where it runs after another; begin of that one to its own.
    """

    graph: Graph
    edges: ProgramEdges
    chained: IntArray
    """Waits (positions) that are as late as the row before them, plus their wire."""
    released: IntArray
    """Waits that end with their operation."""
    kept: IntArray
    """Waits with a node of their own."""
    kept_shared: IntArray
    kept_alone: IntArray
    """Those of them whose operation is a node, and those whose is not."""
    member: Origin
    before: Origin
    """Rows before the kept waits."""
    begin_of_join: IntArray
    """Node at which each operation begins; -1 where it is no node."""
    sole: Origin
    waited: IntArray
    """Edges (caller's order) at whose source somebody begins to wait for an operation."""
    waited_for: IntArray
    """Nodes of these operations."""
    wait_ends: IntArray
    """Edges from these nodes to the ends of the waits; -1 for a wait that ends with its operation."""

    def fold(
        self,
        work_ns: FloatArray,
        wire_ns: FloatArray,
        also: Origin,
        *,
        with_offsets: bool = False,
    ) -> tuple[FloatArray, FloatArray]:
        """Return weights of the contracted edges, and how much later than their nodes rows are.

        Args:
            work_ns: Before each row.
            wire_ns: Of each that runs after another, by how much; of each wait.
            also: The rows of the second result.
            with_offsets: Whether the offsets of waits without a node are added.
        """
        apart_ns, wire_ns = np.split(wire_ns, [len(self.edges.queue_join)])
        path, after_head = self._paths(work_ns, wire_ns, with_offsets=with_offsets)
        rows = self.edges.waits[self.kept]
        edges = np.concatenate(
            [
                _along(path, after_head, self.member),
                _along(path, after_head, self.before) + work_ns[rows],
                wire_ns[self.kept_shared],
                _along(path, after_head, self.sole) + wire_ns[self.kept_alone],
                np.zeros(len(apart_ns)),
                apart_ns,
            ]
        )
        return edges, _along(path, after_head, also)

    def origin(self, rows: IntArray) -> Origin:
        """Return where the times of some rows come from, without looking at all."""
        waits, first = self.edges.waits, self.graph.node_count
        ends = [waits[self.released], waits[self.kept], _rows_of(self.edges.is_root)]
        before = [np.searchsorted(own, rows, side="right").astype(np.int32) - 1 for own in ends]
        last = [np.append(own, np.int32(-1))[at] for own, at in zip(ends, before, strict=True)]
        head = np.maximum.reduce(last)
        released, kept, root = before
        first -= len(ends[1]) + len(ends[2])
        node = np.where(head == last[1], first + kept, first + len(ends[1]) + root)
        of_join = self.begin_of_join[self.edges.join[np.maximum(last[0], 0)]]
        node = np.where((head == last[0]) & (released >= 0), of_join, node)
        return Origin(rows, head, node.astype(np.int32))

    def _paths(
        self, work_ns: FloatArray, wire_ns: FloatArray, *, with_offsets: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return running sums over the rows, and what follows on the node of a head."""
        waits, offset = self.edges.waits, self.edges.offset_ns
        own, of_join = wire_ns[self.chained], wire_ns[self.released]
        if with_offsets:
            own += offset[self.chained]
            of_join += offset[self.released]
        released = waits[self.released]
        step, after_head = work_ns.copy(), np.zeros(len(work_ns))
        step[released] = 0.0
        step[waits[self.kept]] = 0.0
        step[waits[self.chained]] = own
        after_head[released] = of_join
        return np.cumsum(step, out=step), after_head


def _along(path: FloatArray, after_head: FloatArray, origin: Origin) -> FloatArray:
    return np.asarray(path[origin.row] - path[origin.head] + after_head[origin.head])


def contract(edges: ProgramEdges, must_keep: BoolArray | None = None) -> Contraction:
    """Return the contraction of a program.

    Args:
        edges: The program.
        must_keep: Waits that keep a node in any case; for weights that may be negative.

    Raises:
        ValueError: Rows depend on each other in a cycle.
    """
    members = np.bincount(edges.member_join)
    own_join = edges.join[edges.waits]
    is_alone = (members == 1)[own_join]
    passes_on = _passing(edges, is_alone, must_keep)
    chained, released = _rows_of(passes_on & is_alone), _rows_of(passes_on & ~is_alone)
    kept = _rows_of(~passes_on)
    heads = _heads(edges, released, kept, members)
    node_of_join, begin_of_join = heads[2:4]
    shared = (members > 1)[edges.member_join]
    member = _origin(edges.member_row[shared], *heads)
    joined = edges.member_join[shared]
    target_join = node_of_join[joined]
    kept_rows = edges.waits[kept]
    before = _origin(kept_rows - 1, *heads)
    on_node = ~is_alone[kept]
    sole_row = np.zeros(len(members), np.int32)
    sole_row[edges.member_join] = edges.member_row
    sole = _origin(sole_row[own_join[kept[~on_node]]], *heads)
    node_of_row = heads[1]
    source = [member.node, before.node, begin_of_join[own_join[kept[on_node]]], sole.node]
    source += [node_of_join[edges.queue_join], begin_of_join[edges.queue_before]]
    own, held = node_of_row[kept_rows], begin_of_join[edges.queue_join]
    target = [target_join, own, own[on_node], own[~on_node], held, held]
    waited, waited_for, wait_ends = _waited(
        edges, (member.row, joined), released, kept, is_alone, node_of_join
    )
    offset = np.zeros(heads[4])
    offset[own] = edges.offset_ns[kept]
    root_ns = np.zeros(heads[4])
    # A kept wait comes after one row, and waits for one operation; one begins after one other.
    second = len(target_join) + len(own)
    once_from = (len(target_join), second, second + len(own), second + len(own) + len(held))
    return Contraction(
        graph=build_graph(
            np.concatenate(source), np.concatenate(target), root_ns, offset, once_from
        ),
        edges=edges,
        chained=chained,
        released=released,
        kept=kept,
        kept_shared=kept[on_node],
        kept_alone=kept[~on_node],
        member=member,
        before=before,
        begin_of_join=begin_of_join,
        sole=sole,
        waited=waited,
        waited_for=waited_for,
        wait_ends=wait_ends,
    )


def _passing(edges: ProgramEdges, is_alone: BoolArray, must_keep: BoolArray | None) -> BoolArray:
    """Return which waits need no node; ``is_alone``: nobody else is a member of what they wait for."""
    passes_on = edges.is_at_once & (edges.wire_ns >= 0)
    if must_keep is not None:
        passes_on &= ~must_keep
    lasting = ~edges.is_instant
    lasting[edges.waits[passes_on & is_alone & (edges.wire_ns == 0) & (edges.offset_ns == 0)]] = (
        False
    )
    passes_on &= nothing_between(lasting, edges.issue, edges.waits)
    return np.asarray(passes_on)


def nothing_between(lasting: BoolArray, issue: IntArray, waits: IntArray) -> BoolArray:
    """Return which waits have no lasting row between them and the issue of their operation."""
    before = np.cumsum(lasting, dtype=np.int32)
    return np.asarray((issue < waits) & (before[waits - 1] == before[issue]))


def _rows_of(chosen: BoolArray) -> IntArray:
    """Return the chosen rows with 32 bits each: a program has fewer than 2**31."""
    rows: IntArray = np.flatnonzero(chosen).astype(np.int32)
    return rows


def _heads(edges: ProgramEdges, released: IntArray, kept: IntArray, members: IntArray) -> Heads:
    """Return the head of every row, nodes of rows, operations (-1) and their begin, and how many nodes.

    An operation begins when all have issued it, which is its node, unless it runs after another.
    The node of a released wait is that of the begin of its operation.
    """
    count = len(edges.join)
    is_head = edges.is_root.copy()
    is_head[edges.waits[released]] = True
    is_head[edges.waits[kept]] = True
    head = np.zeros(count, np.int32)
    rows = _rows_of(is_head)
    head[rows] = rows
    np.maximum.accumulate(head, out=head)
    shared = _rows_of(members > 1)
    node_of_join = np.full(len(members), -1, np.int32)
    node_of_join[shared] = np.arange(len(shared))
    begin_of_join, held = node_of_join.copy(), len(edges.queue_join)
    begin_of_join[edges.queue_join] = len(shared) + np.arange(held)
    node_of_row = np.full(count, -1, np.int32)
    own = np.concatenate([edges.waits[kept], _rows_of(edges.is_root)])
    node_of_row[own] = len(shared) + held + np.arange(len(own))
    rows = edges.waits[released]
    node_of_row[rows] = begin_of_join[edges.join[rows]]
    return head, node_of_row, node_of_join, begin_of_join, len(shared) + held + len(own)


def _origin(
    rows: IntArray,
    head: IntArray,
    node_of_row: IntArray,
    _joins: IntArray,
    _begins: IntArray,
    _count: int,
) -> Origin:
    own = head[rows]
    return Origin(rows, own, node_of_row[own])


def _waited(
    edges: ProgramEdges,
    members: tuple[IntArray, IntArray],
    released: IntArray,
    kept: IntArray,
    is_alone: BoolArray,
    node_of_join: IntArray,
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the edges at whose source a wait begins, the node that it is for, and its end.

    A released wait begins as its operation is issued; a kept one after the row before it.
    Nobody waits for an operation that only he is a member of.
    """
    is_waited = np.zeros(len(edges.join), dtype=bool)
    is_waited[edges.issue[released]] = True
    row, join = members
    after = _rows_of(is_waited[row])
    after = after[edges.join[row[after]] == join[after]]
    first = len(row)
    with_node = _rows_of(~is_alone[kept])
    own_join = edges.join[edges.waits[kept[with_node]]]
    own_end = first + len(kept) + np.arange(len(with_node), dtype=np.int32)
    return (
        np.concatenate([after, first + with_node]),
        np.concatenate([node_of_join[join[after]], node_of_join[own_join]]),
        np.concatenate([np.full(len(after), -1, np.int32), own_end]),
    )
