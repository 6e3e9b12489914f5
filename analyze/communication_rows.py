"""The rows of ``collective`` and ``p2p`` that are analysed, as plain columns.

Columns are taken from the Arrow table one at a time, so that a capture of millions of
operations is not held in several forms at once. Names are shared between rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Direction, TimeSource

from .intervals import IntArray
from .replay import FloatArray
from .steps import WHOLE_CAPTURE, StepWindows
from .trace import Trace

BoolArray = npt.NDArray[np.bool_]
_HOST = (TimeSource.HOST_BLOCKING.value, TimeSource.HOST_ISSUE.value)


def communication_rows(trace: Trace, windows: StepWindows, name: str) -> pd.DataFrame:
    """Return the rows of one table in the analysed steps; the last row of an event counts.

    Returns:
        rank, event_id, step, group_id, group (number of the group_id), axis, kind, seq,
        size_bytes, is_p2p, is_send, host, start_ns, end_ns, wait_start_ns, wait_end_ns (the
        last three are floats, NaN where unknown), and for sends and receives peer.
    """
    table = trace.tables.get(name, TABLES[name].empty())
    table = _chosen(table, windows)
    step = _integers(table, "step")
    if _is_whole(windows):
        step = np.full(len(step), WHOLE_CAPTURE)
    is_p2p = name == "p2p"
    direction = "direction" if is_p2p else "kind"
    start = _integers(table, "start_ns")
    shift = windows.shifted(pd.Series(step), pd.Series(start)) - start
    begin = start + shift
    end = _times(table, "end_ns", shift)
    wait_start, wait_end = (
        _times(table, "wait_start_ns", shift),
        _times(table, "wait_end_ns", shift),
    )
    # A blocking call whose wait was not seen apart stood still from start to end.
    unseen = _one_of(table, "source", (TimeSource.HOST_BLOCKING.value,)) & np.isnan(wait_end)
    wait_start[unseen], wait_end[unseen] = begin[unseen], end[unseen]
    columns = {
        "rank": _integers(table, "rank"),
        "event_id": _integers(table, "event_id"),
        "step": step,
        "group_id": _names(table, "group_id"),
        "group": _integers_of_codes(table, "group_id"),
        "axis": _names(table, "axis"),
        "kind": _names(table, direction),
        "seq": _integers(table, "seq"),
        "size_bytes": _integers(table, "size_bytes"),
        "is_p2p": np.full(len(step), is_p2p),
        "is_send": is_p2p & _one_of(table, direction, (Direction.SEND.value,)),
        "host": _one_of(table, "source", _HOST),
        "start_ns": begin,
        "end_ns": end,
        "wait_start_ns": wait_start,
        "wait_end_ns": wait_end,
    }
    if is_p2p:
        columns["peer"] = _integers(table, "peer")
    return pd.DataFrame(columns, copy=False)


def _is_whole(windows: StepWindows) -> bool:
    return len(windows.steps) == 1 and windows.steps[0] == WHOLE_CAPTURE


def _chosen(table: pa.Table, windows: StepWindows) -> pa.Table:
    """Return the rows of the analysed steps and ranks, each event once (its last row)."""
    rank = _integers(table, "rank")
    keep = np.isin(rank, windows.ranks)
    if not _is_whole(windows):
        keep &= np.isin(_integers(table, "step"), windows.steps)
    event = _integers(table, "event_id")
    if not _is_rising(rank, event):
        keys = pd.DataFrame({"rank": rank, "event": event})[keep]
        keep[np.flatnonzero(keep)[keys.duplicated(keep="last").to_numpy()]] = False
    return table if keep.all() else table.filter(pa.array(keep))


def _is_rising(rank: IntArray, event: IntArray) -> bool:
    """Return whether rows are sorted by rank and event without repeats, as writers leave them."""
    further = (rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (event[1:] > event[:-1]))
    return bool(further.all())


def _integers(table: pa.Table, name: str) -> IntArray:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def _times(table: pa.Table, name: str, shift: IntArray) -> FloatArray:
    """Return moved times as floats, NaN where unknown; the sum is exact in integers."""
    column = table[name]
    exact = pc.fill_null(column, 0).to_numpy() + shift
    times = exact.astype(np.float64)
    if column.null_count:
        times[pc.is_null(column).to_numpy()] = np.nan
    return np.asarray(times)


def _encoded(table: pa.Table, name: str) -> tuple[IntArray, list[str]]:
    """Return the codes of a column of names, and the names."""
    column = table[name].unify_dictionaries().combine_chunks()
    return column.indices.to_numpy(zero_copy_only=False), column.dictionary.to_pylist()


def _names(table: pa.Table, name: str) -> npt.NDArray[np.object_]:
    codes, words = _encoded(table, name)
    return np.asarray(np.array(words, dtype=object)[codes])


def _integers_of_codes(table: pa.Table, name: str) -> IntArray:
    return _encoded(table, name)[0].astype(np.int64, copy=False)


def _one_of(table: pa.Table, name: str, wanted: tuple[str, ...]) -> BoolArray:
    """Return which rows have one of some values in a column of names."""
    codes, words = _encoded(table, name)
    return np.asarray(np.array([word in wanted for word in words], dtype=bool)[codes])
