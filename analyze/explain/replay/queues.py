"""Transfers of one group that run one after the other, where ranks issue the next before the last is there.

A communicator works through its collectives in turn. One that all members issue while the one before
is still on the wire begins when that one ends::

    begin(k) = max(last issue of k, begin(k - 1) + wire(k - 1))
    end(k)   = begin(k) + wire(k)

Where any member waits for the one before first, its issue says so already, and no more is needed.
Gradients that are reduced during the backward pass are the usual case: with shorter passes they come
closer together, and are no faster for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...align.communication.events import BLOCKING_NS
from ...tables.arrays import FloatArray, IntArray
from ...tables.sorting import order_of
from .marks import ISSUE, WAIT


class Queue(NamedTuple):
    """Which operations begin after which; one row for each that has one before it."""

    before: IntArray
    """The operation that runs first."""
    join: IntArray
    """The one that waits for it."""
    event: IntArray
    """An event of the first."""
    ns: FloatArray
    """How long the second begins after the first, where it was held up."""

    @classmethod
    def empty(cls) -> Queue:
        """Return a queue of nothing."""
        nothing = np.empty(0, np.int32)
        return cls(nothing, nothing, nothing, np.empty(0))

    def begin(self, issued_ns: FloatArray) -> FloatArray:
        """Return when operations begin that have been issued by all at the given times.

        Along a chain the begin is the latest, over all operations up to it, of the issue and
        what runs from there on.
        """
        chain, place = self._chains(len(issued_ns))
        apart = np.zeros(len(issued_ns))
        apart[self.join] = self.ns
        order = np.lexsort((place, chain))
        by_chain = pd.Series(apart[order]).groupby(chain[order])
        since_first = by_chain.cumsum().to_numpy(np.float64)
        ahead = pd.Series(issued_ns[order] - since_first).groupby(chain[order])
        begin = np.empty(len(issued_ns))
        begin[order] = ahead.cummax().to_numpy(np.float64) + since_first
        return begin

    def _chains(self, joins: int) -> tuple[IntArray, IntArray]:
        """Return the chain that each operation is in, and its place in that: by doubling of steps."""
        back, place = np.arange(joins), np.zeros(joins, np.int64)
        back[self.join], place[self.join] = self.before, 1
        while True:
            further = back[back]
            if np.array_equal(further, back):
                return back, place
            place, back = place + place[back], further


def transfers_in_turn(
    marks: pd.DataFrame, frame: pd.DataFrame, own_join: IntArray
) -> tuple[Queue, FloatArray]:
    """Return the queue of the operations, and how long each event is on the wire without queueing.

    Args:
        marks: The marks of the ranks, in program order.
        frame: Communication events.
        own_join: The operation that completes each event.
    """
    wire = frame["wire_ns"].to_numpy(np.float64)
    pairs = _held_up(marks, frame, own_join)
    if pairs.empty:
        return Queue.empty(), wire
    later, first = pairs["event"].to_numpy(), pairs["before"].to_numpy()
    start, end = (frame[name].to_numpy(np.float64) for name in ("start_ns", "end_ns"))
    own = end[later] - np.maximum(start[later], _end_seen(frame, first))
    least = pd.Series(own).groupby(own_join[later]).min().clip(lower=0)
    alone = least.reindex(own_join[later]).to_numpy()
    pure = wire.copy()
    pure[later] = np.fmin(wire[later], alone)
    issued = pd.Series(start).groupby(own_join).max()
    begin = pd.Series(end[later] - pure[later]).groupby(own_join[later]).min()
    one = pairs.drop_duplicates("join")
    before = one["join_before"].to_numpy()
    began = np.fmax(issued[before].to_numpy(), begin.reindex(before).to_numpy())
    apart = begin[one["join"]].to_numpy() - began
    event = one["before"].to_numpy()
    ns = np.minimum(np.maximum(apart, 0.0), pure[event])
    return Queue(before, one["join"].to_numpy(), event, ns), pure


def _held_up(marks: pd.DataFrame, frame: pd.DataFrame, own_join: IntArray) -> pd.DataFrame:
    """Return the members of operations that all issue before anyone waits for the one before.

    Returns:
        event, before (the rank's event of the operation before), join, join_before.
    """
    group = frame["group_id"].cat.codes.to_numpy(np.int64)
    kind, of_mark = marks["mark"].to_numpy(), marks["event"].to_numpy()
    # An end of a step has event -1, which is the last entry.
    is_collective = np.append(~frame["is_p2p"].to_numpy(bool), False)
    issue = np.flatnonzero((kind == ISSUE) & is_collective[of_mark])
    waited = np.full(len(frame), len(marks), np.int32)
    wait = np.flatnonzero(kind == WAIT)
    waited[of_mark[wait]] = wait
    event = of_mark[issue]
    rank = marks["rank"].to_numpy()[issue]
    # Marks are in program order, so a stable order keeps that within a rank and a group.
    order = order_of(rank.astype(np.int64) * (int(group.max(initial=0)) + 1) + group[event])
    event, issue, rank = event[order], issue[order], rank[order]
    same = (rank[1:] == rank[:-1]) & (group[event[1:]] == group[event[:-1]])
    is_held = same & (waited[event[:-1]] > issue[1:])
    later, before = event[1:], event[:-1]
    # Most programs wait for each operation before the next: what follows is of the others only.
    is_free = np.zeros(int(own_join.max(initial=-1)) + 1, dtype=bool)
    is_free[own_join[later[~is_held]]] = True
    later, before = (own[~is_free[own_join[later]]] for own in (later, before))
    joins = {"join": own_join[later], "join_before": own_join[before]}
    pairs = pd.DataFrame({"event": later, "before": before, **joins})
    return pairs[_agreed(pairs, frame, own_join)]


def _agreed(pairs: pd.DataFrame, frame: pd.DataFrame, own_join: IntArray) -> pd.Series:
    """Return the pairs of operations of which all members say the same, and whose wires are known."""
    members = np.bincount(own_join)
    by_join = pairs.groupby("join")
    one_before = by_join["join_before"].transform("nunique") == 1
    size = by_join["event"].transform("size").to_numpy()
    joins = pairs["join"].to_numpy(), pairs["join_before"].to_numpy()
    whole = (size == members[joins[0]]) & (members[joins[0]] == members[joins[1]]) & (size > 1)
    known = frame["wire_ns"].notna().to_numpy() & frame["end_ns"].notna().to_numpy()
    both_known = known[pairs["event"].to_numpy()] & known[pairs["before"].to_numpy()]
    every = pd.Series(both_known, index=pairs.index).groupby(pairs["join"]).transform("all")
    agreed: pd.Series = every & one_before & whole
    return agreed


def _end_seen(frame: pd.DataFrame, event: IntArray) -> FloatArray:
    """Return when events ended; at the latest, where nobody saw it when it was.

    A host that did not stand still in its wait came after the end, and may have looked late.
    """
    start, end, wire, begin, until = (
        frame[name].to_numpy(np.float64)[event]
        for name in ("start_ns", "end_ns", "wire_ns", "wait_start_ns", "wait_end_ns")
    )
    late = frame["host"].to_numpy(bool)[event] & (end >= begin) & (until - begin <= BLOCKING_NS)
    return np.where(late, np.fmin(end, start + wire), end)
