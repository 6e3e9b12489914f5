"""The one window of a capture that has no borders of steps."""

from __future__ import annotations

import pandas as pd

from meshscope.probe.schema.terms import SpanKind

from ...tables.trace import Trace

WHOLE_CAPTURE = -1
"""Step id of the one window of a capture that has no step boundaries."""

_PASSES = (SpanKind.FORWARD.value, SpanKind.BACKWARD.value)
_COLUMNS = ["rank", "step", "start_ns", "dur_ns", "tokens", "detail"]


def whole_capture(trace: Trace) -> pd.DataFrame:
    """Return one window a rank, as a row of the ``step`` table.

    It goes from the first to the last event. Our own captures begin with the process: there it
    goes from the first to the last training work, so that imports and building the model are no
    part of a step. That is passes and what lies between them, else communication.
    """
    work = _work(trace) if trace.capabilities.begins_with_process else []
    bounds = work or _events(trace)
    if not bounds:
        return pd.DataFrame(columns=_COLUMNS)
    span = (
        pd.concat(bounds)
        .groupby("rank", as_index=False)
        .agg(first=("first", "min"), last=("last", "max"))
    )
    span = span.assign(
        step=WHOLE_CAPTURE,
        start_ns=span["first"],
        dur_ns=span["last"] - span["first"],
        tokens=None,
        detail=None,
    )
    return span[_COLUMNS]


def within_window(rows: pd.DataFrame, window: pd.DataFrame, shift_ns: int) -> pd.DataFrame:
    """Return the rows that do not end before the window of their rank, or begin after it.

    Args:
        rows: Events of ranks that have a window.
        window: rank, start_ns and end_ns of the windows, shifted.
        shift_ns: By how much they are.
    """
    begin = rows["start_ns"] if "start_ns" in rows else rows.get("issue_ns")
    if begin is None:
        return rows
    by_rank = window.set_index("rank")
    first, last = (rows["rank"].map(by_rank[name]) - shift_ns for name in ("start_ns", "end_ns"))
    end = begin + rows["dur_ns"] if "dur_ns" in rows else begin
    return rows[(end >= first) & (begin <= last)]


def _work(trace: Trace) -> list[pd.DataFrame]:
    """Return the bounds of the training work of each rank; [] where none was recorded."""
    spans = trace.frame("span")
    passes = _bounds(spans[spans["kind"].isin(_PASSES)])
    rest = [found for name in ("collective", "p2p") if len(found := _bounds(trace.frame(name)))] + (
        [_bounds(kernels)] if len(kernels := trace.frame("kernel")) else []
    )
    # A rank without passes (a server of parameters) works in what it sends.
    others = [found[~found["rank"].isin(passes["rank"])] for found in rest]
    begun = passes.set_index("rank")["first"]
    later = [
        found.assign(first=found["rank"].map(begun))
        for found in (rows[rows["rank"].isin(passes["rank"])] for rows in rest)
    ]
    return [part for part in (passes, *others, *later) if len(part)]


def _events(trace: Trace) -> list[pd.DataFrame]:
    bounds = [
        found for name in ("span", "collective", "p2p") if len(found := _bounds(trace.frame(name)))
    ]
    if trace.row_count("kernel"):
        bounds += [_bounds(trace.rank_frame("kernel", rank)) for rank in trace.ranks]
    return bounds


def _bounds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return first and last instant of each rank in one table; what has no end counts as its start."""
    start = frame["start_ns"]
    last = start + frame["dur_ns"] if "dur_ns" in frame else frame["end_ns"].fillna(start)
    rows = pd.DataFrame({"rank": frame["rank"], "first": start, "last": last})
    return rows.groupby("rank", as_index=False).agg(first=("first", "min"), last=("last", "max"))
