"""Own durations of the ranks of a capture: computing and host work, without waiting."""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SpanKind

from ...account.ledger.build import Ledger, build_ledger
from ...align.communication.events import communication_events
from ...align.steps.microbatch_work import FEATURES, known_work
from ...align.steps.windows import StepWindows, step_windows
from ...tables.arrays import IntArray
from ...tables.classes import WAIT_CLASSES, WIRE_CLASSES, class_code
from ...tables.intervals import covered_by_rank
from ...tables.trace import Trace

MICROBATCH_KINDS = (
    SpanKind.FORWARD.value,
    SpanKind.BACKWARD.value,
    SpanKind.BACKWARD_INPUT.value,
    SpanKind.BACKWARD_WEIGHT.value,
)
_COLUMNS = ("rank", "step", "kind", "chunk", "microbatch", "dur_ns")


def durations_of(trace: Trace) -> pd.DataFrame:
    """Return the own durations of every microbatch: rank, step, kind, chunk, microbatch, dur_ns.

    Where the work of microbatches is known, also tokens and sum_sq. Empty where no span of a microbatch was recorded.
    """
    windows = step_windows(trace)
    ledger = build_ledger(trace, windows, communication_events(trace, windows))
    return own_durations(trace, windows, ledger)


def own_durations(trace: Trace, windows: StepWindows, ledger: Ledger) -> pd.DataFrame:
    """Return the same from a ledger that was made already.

    A span counts with its length less what the ledger calls exposed communication in
    it: a tensor-parallel rank that waits for a slow one inside a layer is not slow.
    """
    spans = windows.select(trace.frame("span"))
    spans = spans[spans["kind"].isin(MICROBATCH_KINDS) & (spans["microbatch"] >= 0)]
    if spans.empty:
        return pd.DataFrame(columns=list(_COLUMNS))
    spans = spans.sort_values("rank", kind="stable")
    start = windows.shifted(spans["step"], spans["start_ns"])
    end = start + spans["dur_ns"].to_numpy(np.int64)
    rank = spans["rank"].to_numpy(np.int64)
    durations = pd.DataFrame(
        {
            "rank": rank,
            "step": spans["step"].to_numpy(np.int64),
            "kind": spans["kind"].astype(str).to_numpy(),
            "chunk": spans["chunk"].to_numpy(np.int64),
            "microbatch": spans["microbatch"].to_numpy(np.int64),
            "dur_ns": end - start - _communication_inside(ledger, rank, start, end),
        }
    )
    work = known_work(trace, durations)
    if work is not None:
        durations[list(FEATURES)] = work
    return durations


def _communication_inside(
    ledger: Ledger, rank: IntArray, start: IntArray, end: IntArray
) -> IntArray:
    """Return the exposed communication inside intervals that are sorted by rank."""
    codes = [class_code(name) for name in (*WAIT_CLASSES, *WIRE_CLASSES)]
    names = ("code", "rank", "start_ns", "end_ns")
    code, of_rank, low, high = (ledger.segments[name].to_numpy() for name in names)
    rows = np.flatnonzero(np.isin(code, codes))
    if (np.diff(of_rank[rows]) < 0).any():
        rows = rows[np.argsort(of_rank[rows], kind="stable")]
    return covered_by_rank(of_rank[rows], (low[rows], high[rows]), rank, start, end)
