"""Where ranks stand between two activities of their programs: ready for the next, and departing into it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...account.ledger.build import NO_EVENT, Ledger, when_computed
from ...align.steps.windows import StepWindows
from ...tables.arrays import BoolArray, FloatArray, IntArray, combined
from ...tables.classes import CLASSES, CODE, SPAN_CLASS, UNATTRIBUTED, class_code, compute_code
from ...tables.trace import Trace
from ..replay.marks import END, ISSUE
from ..replay.program import Program

IDLE = (UNATTRIBUTED, "host_blocked", "other")
"""Classes in which a rank may stand in a join that nobody recorded."""


class Places(NamedTuple):
    """Where ranks are ready and depart, one row a rank, step and place in the program."""

    rank: IntArray
    step: IntArray
    key: IntArray
    """Equal where ranks are at the same place: before the k-th activity of one kind in a step."""
    kind: IntArray
    """That kind: an operation from 1 on, 0 for the end of the step, below it a class of computing."""
    ready_ns: FloatArray
    depart_ns: FloatArray

    @property
    def gap_ns(self) -> FloatArray:
        """Return how long each stands between ready and departure."""
        return self.depart_ns - self.ready_ns

    def chosen(self, rows: BoolArray) -> Places:
        """Return some of the rows."""
        whole = (self.rank[rows], self.step[rows], self.key[rows], self.kind[rows])
        return Places(*whole, self.ready_ns[rows], self.depart_ns[rows])

    def by_longest(self) -> Places:
        """Return the places with the longest stand of each rank as one place, and none other.

        What ranks of several stages do next need not be the same.
        """
        own = combined(self.rank, self.key)
        mean = pd.Series(self.gap_ns).groupby(own).transform("mean")
        longest = mean >= mean.groupby(self.rank).transform("max")
        # A place of one rank alone is held against nobody.
        return self._replace(key=np.where(longest, -1, self.rank).astype(np.int64))

    def with_gaps(self, least_ns: float) -> Places:
        """Return the places of the program at which ranks stand so long on the mean."""
        gaps = pd.Series(self.gap_ns).groupby(self.key).transform("mean")
        return self.chosen(gaps.to_numpy() >= least_ns)


def places_of(trace: Trace, program: Program, ledger: Ledger) -> Places:
    """Return all places: before each operation and each computation of a rank, and before the end of a step."""
    rank, step, named, depart = np.concatenate(
        [_operations(program), _computations(trace, program.windows)], axis=1
    )
    order = np.lexsort((depart, rank))
    rank, step, named, depart = (values[order] for values in (rank, step, named, depart))
    number = np.asarray(pd.Series(named).groupby(combined(rank, step, named)).cumcount(), np.int64)
    windows = program.windows.frame
    starts = windows.set_index(["rank", "step"])["start_ns"]
    begin = starts.reindex(pd.MultiIndex.from_arrays([rank, step])).to_numpy(np.float64)
    ready = np.maximum(np.nan_to_num(begin, nan=np.inf), _last_busy(ledger, rank, depart))
    # An operation that takes no time leaves no segment, but its rank was there.
    before = np.append(
        np.iinfo(np.int64).min, np.where(rank[1:] == rank[:-1], depart[:-1], begin[1:])
    )
    ready = np.minimum(np.maximum(ready, before), depart)
    key = combined(named, number)
    return Places(rank, step, key, named, ready.astype(np.float64), depart.astype(np.float64))


def names_of(program: Program, kinds: IntArray) -> list[str]:
    """Return what each kind of activity is called."""
    codes, frame = 1 + pd.factorize(program.signature)[0], program.events
    names = {0: "the end of the step"}
    for kind in np.unique(kinds).tolist():
        if kind > 0:
            event = int(np.argmax(codes == kind))
            axis, operation = (str(frame[name].iloc[event]) for name in ("axis", "kind"))
            names[kind] = f"{operation} ({axis})"
        elif kind < 0:
            names[kind] = CLASSES[-1 - kind]
    return [names[kind] for kind in kinds.tolist()]


def _operations(program: Program) -> IntArray:
    """Return rank, step, a number for the kind, and begin, of operations and of the ends of steps."""
    marks = program.marks
    kind = marks["mark"].to_numpy()
    is_end = (kind == END) & program.windows.has_marks
    row = np.flatnonzero(((kind == ISSUE) | is_end) & ~marks["is_root"].to_numpy(bool))
    event = marks["event"].to_numpy()[row]
    codes = np.append(1 + pd.factorize(program.signature)[0], 0)
    named = np.where(event == NO_EVENT, 0, codes[event])
    rank, step, start = (
        marks[name].to_numpy(np.int64)[row] for name in ("rank", "step", "start_ns")
    )
    return np.stack([rank, step, named.astype(np.int64), start])


def _computations(trace: Trace, windows: StepWindows) -> IntArray:
    """Return the same of spans of computing, their kinds below 0."""
    frame = trace.frame("span")
    classes = frame["kind"].astype(str).replace(SPAN_CLASS)
    code = np.asarray(classes.map(CODE).fillna(-1), dtype=np.int64)
    chosen = compute_code(code) & np.isin(frame["rank"], windows.ranks)
    chosen &= np.isin(frame["step"], windows.steps)
    frame, code = frame[chosen], code[chosen]
    start, _ = when_computed(frame)
    begin = windows.shifted(frame["step"], start)
    rank, step = (frame[name].to_numpy(np.int64) for name in ("rank", "step"))
    return np.stack([rank, step, -1 - code, np.asarray(begin, np.int64)])


def _last_busy(ledger: Ledger, rank: IntArray, before: IntArray) -> IntArray:
    """Return when each rank was last busy up to an instant; the least number where it never was."""
    segments = ledger.segments
    is_busy = ~np.isin(segments["code"].to_numpy(), [class_code(name) for name in IDLE])
    own, end, start = (
        segments[name].to_numpy(np.int64)[is_busy] for name in ("rank", "end_ns", "start_ns")
    )
    if not len(own):
        return np.full(len(rank), np.iinfo(np.int64).min)
    origin = min(int(start.min(initial=0)), int(before.min(initial=0)))
    length = max(int(end.max(initial=0)), int(before.max(initial=0))) - origin + 1
    place = np.searchsorted(own * length + (start - origin), rank * length + (before - origin)) - 1
    found = np.minimum(end[np.maximum(place, 0)], before)
    is_own = (place >= 0) & (own[np.maximum(place, 0)] == rank)
    return np.asarray(np.where(is_own, found, np.iinfo(np.int64).min))
