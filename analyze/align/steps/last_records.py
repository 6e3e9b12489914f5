"""Until when each rank recorded something."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...tables.trace import Trace


def last_records_ns(trace: Trace) -> pd.Series[float]:
    """Return for each rank the last time that a record of it has, a begin or an end.

    When it began to record, where nothing came after that; 0 if that is not known either.
    """
    latest = pd.Series(0.0, index=pd.Index(trace.ranks, name="rank"))
    begun = trace.frame("recording").groupby("rank")["start_ns"].max()
    latest = latest.combine(begun.reindex(latest.index).astype("float64"), np.fmax)
    for name in ("collective", "p2p", "span", "step"):
        frame = trace.frame(name)
        if "dur_ns" in frame:
            times = frame["start_ns"] + frame["dur_ns"]
        else:
            times = frame[["issue_ns", "end_ns"]].astype("float64").max(axis=1)
        by_rank = times.groupby(frame["rank"]).max()
        latest = latest.combine(by_rank.reindex(latest.index).astype("float64"), np.fmax)
    return latest


def last_record_ns(trace: Trace) -> int:
    """Return the last time that a record of any rank has; 0 without records."""
    return int(last_records_ns(trace).max()) if trace.ranks else 0
