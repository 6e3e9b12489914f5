"""Own durations of the ranks of a capture: computing and host work, without waiting."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SpanKind

from ...account.ledger.build import Ledger, build_ledger
from ...align.communication.events import communication_events
from ...align.steps.microbatch_work import FEATURES, known_work
from ...align.steps.windows import StepWindows, step_windows
from ...tables.arrays import IntArray
from ...tables.classes import WAIT_CLASSES, WIRE_CLASSES, class_code, code_among
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


def own_durations(
    trace: Trace, windows: StepWindows, ledger: Ledger, ranks: Collection[int] | None = None
) -> pd.DataFrame:
    """Return the same from a ledger that was made already.

    A span counts with its length less what the ledger calls exposed communication in
    it: a tensor-parallel rank that waits for a slow one inside a layer is not slow.

    Args:
        trace: The capture.
        windows: The analysed steps.
        ledger: Their ledger.
        ranks: Whose passes are asked for; None for all.
    """
    spans = windows.select(trace.frame("span"))
    is_own = spans["kind"].isin(MICROBATCH_KINDS) & (spans["microbatch"] >= 0)
    if ranks is not None:
        is_own &= spans["rank"].isin(list(ranks))
    rows = np.flatnonzero(is_own.to_numpy(bool))
    if not len(rows):
        return pd.DataFrame(columns=list(_COLUMNS))
    rank = spans["rank"].to_numpy(np.int64)[rows]
    if (np.diff(rank) < 0).any():
        order = np.argsort(rank, kind="stable")
        rows, rank = rows[order], rank[order]
    names = ("step", "chunk", "microbatch", "dur_ns")
    step, chunk, microbatch, length = (spans[name].to_numpy(np.int64)[rows] for name in names)
    start = windows.shifted(pd.Series(step), spans["start_ns"].iloc[rows])
    end = start + length
    kinds = spans["kind"].astype("category").cat
    words = np.array([*map(str, kinds.categories)], dtype=object)
    durations = pd.DataFrame(
        {
            "rank": rank,
            "step": step,
            "kind": words[kinds.codes.to_numpy()[rows]],
            "chunk": chunk,
            "microbatch": microbatch,
            "dur_ns": length - _communication_inside(ledger, rank, start, end),
        },
        copy=False,
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
    rows = np.flatnonzero(code_among(code, codes))
    if (np.diff(of_rank[rows]) < 0).any():
        rows = rows[np.argsort(of_rank[rows], kind="stable")]
    return covered_by_rank(of_rank[rows], (low[rows], high[rows]), rank, start, end)
