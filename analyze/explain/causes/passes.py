"""The computing inside forward and backward passes, and the work edges that it lies on."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from ...account.ledger.build import Ledger
from ...align.steps.time_lookup import are_in_order, last_before, microbatch_spans, overlaps
from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.classes import COMPUTE_CLASSES, class_code, code_among
from ...tables.trace import Trace
from ..replay.program import Program


class Passes:
    """The passes of the analysed steps and the computing in them; made when they are first asked for."""

    def __init__(self, trace: Trace, windows: StepWindows, ledger: Ledger) -> None:
        self._trace, self._windows, self._ledger = trace, windows, ledger

    @cached_property
    def spans(self) -> pd.DataFrame:
        """Return what ``microbatch_spans`` does."""
        return microbatch_spans(self._trace, self._windows)

    @cached_property
    def pieces(self) -> pd.DataFrame:
        """Return what ``computing_pieces`` does."""
        return computing_pieces(self.spans, self._ledger)


def computing_pieces(spans: pd.DataFrame, ledger: Ledger) -> pd.DataFrame:
    """Return the computing inside each pass: span, rank, start_ns, dur_ns."""
    codes = list(map(class_code, COMPUTE_CLASSES))
    rows = np.flatnonzero(code_among(ledger.segments["code"].to_numpy(), codes))
    names = ("rank", "start_ns", "end_ns")
    columns = {name: ledger.segments[name].to_numpy()[rows] for name in names}
    segments = pd.DataFrame(columns, copy=False)
    if not are_in_order(columns["rank"], columns["start_ns"]):
        segments = segments.sort_values(["rank", "start_ns"])
    begin, end = spans["start_ns"], spans["start_ns"] + spans["dur_ns"]
    outer = {"rank": spans["rank"], "start_ns": begin, "end_ns": end}
    span, _, low, high = overlaps(pd.DataFrame(outer, copy=False), segments)
    rank = spans["rank"].to_numpy()[span]
    pieces = {"span": span, "rank": rank, "start_ns": low, "dur_ns": high - low}
    return pd.DataFrame(pieces, copy=False)


def edge_of_pieces(program: Program, pieces: pd.DataFrame) -> IntArray:
    """Return the work edge that holds, or is the first to end after, the middle of each piece."""
    marks, edge = program.marks, program.work_edges
    rank = pieces["rank"].to_numpy(np.int64)
    # Twice the time, so that the middle is a whole number.
    middle = 2 * pieces["start_ns"].to_numpy(np.int64) + pieces["dur_ns"].to_numpy(np.int64)
    ends = 2 * marks["start_ns"].to_numpy(np.int64)[edge]
    before = last_before(marks["rank"].to_numpy(np.int64)[edge], ends, rank, middle)
    return np.minimum(before + 1, len(edge) - 1)
