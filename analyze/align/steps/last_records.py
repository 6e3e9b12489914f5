"""Until when each rank recorded something, and until when its program is known to have gone on."""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SpanKind

from ...tables.trace import Trace


def last_records_ns(trace: Trace) -> pd.Series[float]:
    """Return for each rank the last time that a record of it has, a begin or an end.

    When it began to record, where nothing came after that; 0 if that is not known either.
    """
    return _latest(trace, unwound=frozenset(), kinds_left_out=())


def last_progress_ns(trace: Trace) -> pd.Series[float]:
    """Return the same of what the program of each rank did by itself.

    Garbage collections do not count: any thread causes them, also while the one that trains hangs. Nor do ends of
    what an exception may have ended, as Ctrl-C does of the pass in which a rank hung.
    """
    progress = trace.frame("progress")
    unwound = frozenset(progress.loc[progress["ended_by"].notna(), "rank"])
    return _latest(trace, unwound=unwound, kinds_left_out=(SpanKind.GC.value,))


def last_record_ns(trace: Trace) -> int:
    """Return the last time that a record of any rank has; 0 without records."""
    return int(last_records_ns(trace).max()) if trace.ranks else 0


def _latest(
    trace: Trace, *, unwound: frozenset[int], kinds_left_out: tuple[str, ...]
) -> pd.Series[float]:
    """Return the last times of records.

    Args:
        trace: The capture.
        unwound: Ranks of whose operations and spans only the begins count.
        kinds_left_out: Kinds of spans that do not count.
    """
    latest = pd.Series(0.0, index=pd.Index(trace.ranks, name="rank"))
    begun = trace.frame("recording").groupby("rank")["start_ns"].max()
    latest = latest.combine(begun.reindex(latest.index).astype("float64"), np.fmax)
    for name in ("collective", "p2p", "span", "step"):
        frame = trace.frame(name)
        if name == "span" and kinds_left_out:
            frame = frame[~frame["kind"].isin(kinds_left_out)]
        if "dur_ns" in frame:
            begins, ends = frame["start_ns"], frame["start_ns"] + frame["dur_ns"]
        else:
            begins, ends = frame["issue_ns"], frame["end_ns"]
        begins, ends = begins.astype("float64"), ends.astype("float64")
        if name != "step" and unwound:
            ends = ends.mask(frame["rank"].isin(unwound))
        # An end that is not known leaves the begin.
        by_rank = ends.where(ends > begins, begins).groupby(frame["rank"]).max()
        latest = latest.combine(by_rank.reindex(latest.index), np.fmax)
    return latest
