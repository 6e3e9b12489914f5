"""From recorded events to the replay graph, for any trainer.

Each rank's time line is cut at *marks* (``marks``). Between two of them lies *work* (computing, launching, loading data, idling for a
reason of the rank's own). An operation is complete ``wire`` after the last of
its members has issued it, so a wait ends at the later of own arrival and that.
What a recorded wait lasted longer or shorter than this model says is kept as
its offset: with nothing changed, the replay gives the recorded times exactly.
No schedule is known here, and none is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...account.ledger.build import Ledger
from ...align.communication.events import CommunicationEvents
from ...align.communication.missing_ranks import ReplicaProxies
from ...align.steps.windows import StepWindows
from ...formulas.schedules.engine import Graph, build_graph
from ...tables.arrays import BoolArray, FloatArray, IntArray, narrow
from .contraction import Contraction, ProgramEdges, contract
from .marks import ISSUE, RELEASE_TOLERANCE_NS, WAIT, program_marks
from .queues import Queue, transfers_in_turn


class Members(NamedTuple):
    """Edges from an issue mark to the operation that it belongs to."""

    mark: IntArray
    join: IntArray


@dataclass(frozen=True, kw_only=True)
class Program:
    """Marks of all ranks in program order, and the graph over them.

    Nodes of the whole graph are the marks, then one per operation, then the begin of each that
    runs after another. Edges are, in this order: work (previous mark to mark), member (issue to
    operation), operation to its begin, queue (begin of the operation before to that of the next),
    completion (begin of the operation to wait). Replays of many lanes use the contracted graph.
    """

    marks: pd.DataFrame
    """rank, step, mark, event, start_ns, end_ns, work_ns since the mark before, join (-1), is_root."""
    members: Members
    contraction: Contraction
    work_edges: IntArray
    """Mark index of each work edge."""
    waits: IntArray
    """Mark index of each completion edge."""
    wire_ns: FloatArray
    """Weight of each completion edge."""
    queue: Queue
    joins: int
    """Number of operations."""
    windows: StepWindows
    events: pd.DataFrame
    """The rows of the communication events that the marks refer to, with wires without queueing."""
    disorder: int
    """Work that came out negative (overlapping waits or a wrong clock) and was set to 0."""

    @cached_property
    def graph(self) -> Graph:
        """Return the whole graph, in which every mark and operation is a node."""
        count, marks, queue = len(self.marks), self.marks, self.queue
        offset = np.zeros(count + self.joins + len(queue.join))
        offset[self.waits] = self.contraction.edges.offset_ns
        begin = count + np.arange(self.joins)
        begin[queue.join] = held = count + self.joins + np.arange(len(queue.join))
        waited_for = begin[marks["join"].to_numpy()[self.waits]]
        source = [
            self.work_edges - 1,
            self.members.mark,
            count + queue.join,
            begin[queue.before],
            waited_for,
        ]
        target = [self.work_edges, count + self.members.join, held, held, self.waits]
        return build_graph(np.concatenate(source), np.concatenate(target), self.recorded_ns, offset)

    @cached_property
    def wire_event(self) -> IntArray:
        """Return the event of each queue edge, then of each completion edge: the last edges."""
        of_waits = self.marks["event"].to_numpy()[self.waits]
        return np.concatenate([self.queue.event.astype(np.int32), of_waits])

    @property
    def first_wire(self) -> int:
        """Return the number of edges before these."""
        return self.edge_count - len(self.wire_event)

    @property
    def signature(self) -> npt.NDArray[np.uint64]:
        """Return what each event is (axis and operation) as one number, equal for equal ones."""
        return _signature(self.events)

    @property
    def is_recorded_issue(self) -> BoolArray:
        """Return which marks are issues of operations that were recorded, not inferred."""
        marks = self.marks
        is_issue = marks["mark"].to_numpy() == ISSUE
        inferred = np.append(self.events["is_inferred"].to_numpy(bool), False)
        if not inferred.any():
            return np.asarray(is_issue)
        return np.asarray(is_issue & ~inferred[marks["event"].to_numpy()])

    @property
    def communicating_steps(self) -> npt.NDArray[np.int64]:
        """Return the analysed steps in which any rank issued anything."""
        marks = self.marks
        issued = marks["step"].to_numpy(np.int64)[marks["mark"].to_numpy() == ISSUE]
        return np.unique(issued)

    @property
    def recorded_ns(self) -> FloatArray:
        """Return the recorded time of every node; 0 for operations, which have none."""
        times = np.zeros(len(self.marks) + self.joins + len(self.queue.join))
        times[: len(self.marks)] = self.marks["end_ns"].to_numpy(np.float64)
        return times

    @property
    def base_ns(self) -> FloatArray:
        """Return the recorded weight of every edge."""
        work = self.marks["work_ns"].to_numpy()[self.work_edges].astype(np.float64)
        nothing = np.zeros(len(self.members.mark) + len(self.queue.join))
        return np.concatenate([work, nothing, self.queue.ns, self.wire_ns])

    @property
    def edge_count(self) -> int:
        """Return the number of edges."""
        of_queue = 2 * len(self.queue.join)
        return len(self.work_edges) + len(self.members.mark) + of_queue + len(self.waits)


def build_program(
    windows: StepWindows,
    events: CommunicationEvents,
    ledger: Ledger,
    resolution_ns: float = RELEASE_TOLERANCE_NS,
) -> Program:
    """Return the program of the analysed steps.

    Args:
        windows: The analysed steps.
        events: Their communication.
        ledger: Their ledger.
        resolution_ns: How far apart stamps of one instant may lie.

    Raises:
        ValueError: Marks depend on each other in a cycle.
    """
    frame = events.frame
    own_join = _buffered_sends_alone(frame)
    marks, disorder = program_marks(windows, frame, own_join, ledger.segments, resolution_ns)
    joins = int(own_join.max()) + 1 if len(frame) else 0
    work_edges = np.flatnonzero(~marks["is_root"].to_numpy(bool)).astype(np.int32)
    issues = _, issue = _issues(marks, len(frame))
    members = _members(marks, frame, events.replica_proxies, issues)
    waits = np.flatnonzero((marks["mark"] == WAIT).to_numpy()).astype(np.int32)
    queue, wire_of_event = transfers_in_turn(marks, frame, own_join)
    if len(queue.join):
        frame = _with_wires(frame, wire_of_event)
    wire = np.nan_to_num(wire_of_event[marks["event"].to_numpy()[waits]], copy=False)
    begin = _begin_of_joins(marks, members, queue, joins)
    wire, offset = _fit_waits(marks, begin, waits, wire)
    is_idle = marks["work_ns"].to_numpy() == 0
    is_instant = (marks["mark"].to_numpy() == ISSUE) & is_idle
    edges = ProgramEdges(
        is_root=marks["is_root"].to_numpy(bool),
        waits=waits,
        join=marks["join"].to_numpy(),
        issue=issue[marks["event"].to_numpy()[waits]],
        is_instant=is_instant,
        is_at_once=is_idle[waits],
        wire_ns=wire,
        offset_ns=offset,
        member_row=members.mark,
        member_join=members.join,
        queue_before=queue.before,
        queue_join=queue.join,
    )
    return Program(
        marks=marks,
        members=members,
        contraction=contract(edges),
        work_edges=work_edges,
        waits=waits,
        wire_ns=wire,
        queue=queue,
        joins=joins,
        windows=windows,
        events=frame,
        disorder=disorder,
    )


def _with_wires(frame: pd.DataFrame, wire_ns: FloatArray) -> pd.DataFrame:
    """Return events with other wire times; the other columns, which are large, are shared."""
    found = frame.copy(deep=False)
    found["wire_ns"] = wire_ns
    return found


def _signature(frame: pd.DataFrame) -> npt.NDArray[np.uint64]:
    if frame.empty:
        return np.empty(0, np.uint64)
    axis, kind = (frame[name].cat.codes.to_numpy(np.int16) for name in ("axis", "kind"))
    axes, kinds = (frame[name].cat.categories.to_numpy() for name in ("axis", "kind"))
    # Few different operations occur: each is hashed once.
    pairs = pd.DataFrame({"axis": np.repeat(axes, len(kinds)), "kind": np.tile(kinds, len(axes))})
    hashed = np.asarray(pd.util.hash_pandas_object(pairs, index=False), dtype=np.uint64)
    return np.asarray(hashed[axis * len(kinds) + kind])


def _buffered_sends_alone(frame: pd.DataFrame) -> IntArray:
    """Return the operation of each event; a buffered send completes on its own."""
    join = frame["join"].to_numpy()
    alone = np.flatnonzero(frame["is_buffered"].to_numpy(bool))
    if not len(alone):
        return narrow(join)
    first = int(join.max()) + 1
    own: IntArray = join.astype(np.int32 if first + len(alone) < 2**31 else np.int64)
    own[alone] = np.arange(first, first + len(alone))
    return own


def _issues(marks: pd.DataFrame, events: int) -> tuple[IntArray, IntArray]:
    """Return the rows of the marks that issue something, and that of each event."""
    rows = np.flatnonzero((marks["mark"] == ISSUE).to_numpy()).astype(np.int32)
    issue = np.zeros(events, np.int32)
    issue[marks["event"].to_numpy()[rows]] = rows
    return rows, issue


def _members(
    marks: pd.DataFrame,
    frame: pd.DataFrame,
    held: ReplicaProxies,
    issues: tuple[IntArray, IntArray],
) -> Members:
    """Return who must have issued an operation before it can be complete.

    The members of a collective, both ends of a rendezvous, the send and the
    receive of a buffered pair (where the send itself completes alone), and who stands
    in for a member that is not in the capture.

    Args:
        marks: The marks, in program order.
        frame: Communication events.
        held: Who stands in for whom.
        issues: As ``_issues`` returns them.
    """
    mark, issue = issues
    event = marks["event"].to_numpy()[mark]
    own = marks["join"].to_numpy()[mark]
    shared = frame["join"].to_numpy()[event] if len(frame) else own
    buffered = own != shared
    return Members(
        np.concatenate([mark, mark[buffered], issue[held.event]]),
        np.concatenate([own, shared[buffered], held.join.astype(own.dtype)]),
    )


def _begin_of_joins(marks: pd.DataFrame, members: Members, queue: Queue, joins: int) -> FloatArray:
    """Return when each operation began: all had issued it, and what runs before it was done."""
    begin = np.full(joins, -np.inf)
    start = marks["start_ns"].to_numpy()
    np.maximum.at(begin, members.join, start[members.mark].astype(np.float64))
    if len(queue.join):
        begin = queue.begin(begin)
    return begin


def _fit_waits(
    marks: pd.DataFrame, begin: FloatArray, waits: IntArray, wire: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the wire time and the offset of each wait that give its recorded end.

    A member that left before the model lets it has a shorter wire of its own (it may
    be negative, for one that need not wait for all): an offset would put the end
    before its arrival in a scenario. One that left later has the rest as offset.
    """
    arrived = marks["start_ns"].to_numpy()[waits].astype(np.float64)
    recorded = marks["end_ns"].to_numpy()[waits].astype(np.float64)
    end = begin[marks["join"].to_numpy()[waits]]
    fitted = np.minimum(wire, recorded - end)
    end += fitted
    recorded -= np.maximum(arrived, end, out=end)
    return fitted, recorded
