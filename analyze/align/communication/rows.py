"""The rows of ``collective`` and ``p2p`` that are analysed, as plain columns.

Columns are taken from the Arrow table one at a time, so that a capture of millions of
operations is not held in several forms at once. Names are categories in sorted order, and
numbers are as narrow as they can be.

``in_order_of_issue`` needs no partner to be known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import WAIT_SOURCES, Direction, TimeSource

from ...tables.arrays import BoolArray, FloatArray, IntArray, combined, narrow
from ...tables.stored_tables import let_go
from ...tables.trace import Trace
from ..steps.windows import WHOLE_CAPTURE, StepWindows

FLOAT_BYTES = {
    **dict.fromkeys(("float64", "double"), 8),
    **dict.fromkeys(("float32", "float"), 4),
    **dict.fromkeys(("bfloat16", "float16", "half"), 2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
}
"""Types that another floating type, or scaled integers, can stand for on the wire."""
ELEMENT_BYTES = {
    **FLOAT_BYTES,
    **dict.fromkeys(("int64", "long"), 8),
    **dict.fromkeys(("int32", "int"), 4),
    "int16": 2,
    **dict.fromkeys(("int8", "uint8", "byte", "char"), 1),
}


def plain_name(dtype: object) -> str:
    """Return the name of a type as the tables here have it.

    >>> plain_name("torch.bfloat16"), plain_name("c10::BFloat16")
    ('bfloat16', 'bfloat16')
    """
    return str(dtype).lower().removeprefix("torch.").removeprefix("c10::")


def communication_rows(trace: Trace, windows: StepWindows, name: str) -> pd.DataFrame:
    """Return the rows of one table in the analysed steps; the last row of an event counts.

    Returns:
        rank, event_id, step, group_id, axis, kind (three categories), seq, size_bytes, is_p2p,
        is_send, host, float_bytes (of an element; 0 where it is no float or unknown), start_ns, end_ns, wait_start_ns, wait_end_ns (the last three are floats,
        NaN where unknown), and for sends and receives peer.
    """
    table = trace.tables.get(name, TABLES[name].empty())
    table, step = _chosen(table, windows)
    if not windows.has_marks:
        step = np.full(len(step), WHOLE_CAPTURE)
    is_p2p = name == "p2p"
    direction = "direction" if is_p2p else "kind"
    start = integers(table, "start_ns")
    begin = windows.shifted(pd.Series(step), pd.Series(start))
    shift = begin - start
    end = _times(table, "end_ns", shift)
    wait_start, wait_end = (
        _times(table, "wait_start_ns", shift),
        _times(table, "wait_end_ns", shift),
    )
    # A blocking call whose wait was not seen apart stood still from start to end.
    unseen = _one_of(table, "source", (TimeSource.HOST_BLOCKING.value,)) & np.isnan(wait_end)
    wait_start[unseen], wait_end[unseen] = begin[unseen], end[unseen]
    columns = {
        "rank": _narrow(table, "rank"),
        "event_id": integers(table, "event_id"),
        "step": narrow(step),
        "group_id": _names(table, "group_id"),
        "axis": _names(table, "axis"),
        "kind": _names(table, direction),
        "seq": integers(table, "seq"),
        "size_bytes": integers(table, "size_bytes"),
        "is_p2p": np.full(len(step), is_p2p),
        "is_send": is_p2p & _one_of(table, direction, (Direction.SEND.value,)),
        "host": _one_of(table, "source", WAIT_SOURCES),
        "float_bytes": _float_bytes(table),
        "start_ns": begin,
        "end_ns": end,
        "wait_start_ns": wait_start,
        "wait_end_ns": wait_end,
    }
    if is_p2p:
        columns["peer"] = _narrow(table, "peer")
    return pd.DataFrame({key: _own(column) for key, column in columns.items()}, copy=False)


def _own(column: Any) -> Any:
    """Return values in memory of their own: the table can be let go."""
    is_part = isinstance(column, np.ndarray) and not column.flags.owndata
    return column.copy() if is_part else column


def sent_rows(trace: Trace, windows: StepWindows, name: str) -> pd.DataFrame:
    """Return what ``communication_rows`` has of these: rank, step, group_id, axis, kind, size_bytes, is_send."""
    table, step = _chosen(trace.tables.get(name, TABLES[name].empty()), windows)
    if not windows.has_marks:
        step = np.full(len(step), WHOLE_CAPTURE)
    direction = "direction" if name == "p2p" else "kind"
    columns = {
        "rank": _narrow(table, "rank"),
        "step": narrow(step),
        "group_id": _names(table, "group_id"),
        "axis": _names(table, "axis"),
        "kind": _names(table, direction),
        "size_bytes": integers(table, "size_bytes"),
        "is_send": (name == "p2p") & _one_of(table, direction, (Direction.SEND.value,)),
    }
    let_go(trace.tables, name)
    return pd.DataFrame(columns, copy=False)


def _chosen(table: pa.Table, windows: StepWindows) -> tuple[pa.Table, IntArray]:
    """Return the rows of the analysed steps and ranks, each event once (its last row).

    And the step of each: where only some steps are analysed, an operation of the step
    before that the host waited for in one of them belongs to that.
    """
    rank, step = _narrow(table, "rank"), integers(table, "step")
    keep = _among(rank, windows.ranks)
    if windows.sampled:
        step = np.where(_reaches_over(table, windows), step + 1, step)
    if windows.has_marks:
        keep &= _among(step, windows.steps)
    event = integers(table, "event_id")
    if not _is_rising(rank, event):
        keys = pd.DataFrame({"rank": rank, "event": event})[keep]
        keep[np.flatnonzero(keep)[keys.duplicated(keep="last").to_numpy()]] = False
    return (table, step) if keep.all() else (table.filter(pa.array(keep)), step[keep])


def _reaches_over(table: pa.Table, windows: StepWindows) -> BoolArray:
    """Return which rows of steps left out were waited for in the analysed step after theirs."""
    rank, step = integers(table, "rank"), integers(table, "step")
    next_is_analysed = np.isin(step + 1, windows.steps) & ~np.isin(step, windows.steps)
    frame = windows.frame
    begin = frame["start_ns"] - frame["step"].map(windows.shift_ns)
    begins = pd.Series(begin.to_numpy(), index=[frame["rank"], frame["step"]])
    wanted = pd.MultiIndex.from_arrays([rank, step + 1])
    after = begins.reindex(wanted).fillna(np.iinfo(np.int64).max).to_numpy()
    until = pc.fill_null(table["wait_end_ns"], 0).to_numpy()
    return np.asarray(next_is_analysed & (until > after))


def _is_rising(rank: IntArray, event: IntArray) -> bool:
    """Return whether rows are sorted by rank and event without repeats, as writers leave them."""
    further = (rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (event[1:] > event[:-1]))
    return bool(further.all())


def integers(table: pa.Table, name: str) -> IntArray:
    """Return a column of whole numbers with 64 bits."""
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def _narrow(table: pa.Table, name: str) -> IntArray:
    """Return whole numbers with 32 bits where they fit; those that have no more are not copied twice."""
    values = table[name].to_numpy()
    return values if values.dtype == np.int32 else narrow(np.asarray(values, dtype=np.int64))


def _among(values: IntArray, known: IntArray) -> BoolArray:
    """Return which values are among known ones, which rise; most often these are all from one to another."""
    if len(known) and int(known[-1]) - int(known[0]) == len(known) - 1:
        return np.asarray((values >= known[0]) & (values <= known[-1]))
    return np.isin(values, known)


def _times(table: pa.Table, name: str, shift: IntArray) -> FloatArray:
    """Return moved times as floats, NaN where unknown; the sum is exact in integers."""
    column = table[name]
    known = pc.fill_null(column, 0) if column.null_count else column
    times = (known.to_numpy() + shift).astype(np.float64)
    if column.null_count:
        times[pc.is_null(column).to_numpy()] = np.nan
    return np.asarray(times)


def _float_bytes(table: pa.Table) -> npt.NDArray[np.int8]:
    """Return the bytes of an element of each row, 0 where its type is no float or unknown."""
    column = table["dtype"].unify_dictionaries().combine_chunks()
    words = column.dictionary.to_pylist()
    sizes = [FLOAT_BYTES.get(plain_name(word), 0) for word in words]
    codes = pc.fill_null(column.indices, len(words)).to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.int8] = np.array([*sizes, 0], dtype=np.int8)[codes]
    return found


def encoded(table: pa.Table, name: str) -> tuple[IntArray, list[str]]:
    """Return the codes of a column of names, and the names."""
    column = table[name].unify_dictionaries().combine_chunks()
    return column.indices.to_numpy(zero_copy_only=False), column.dictionary.to_pylist()


def _names(table: pa.Table, name: str) -> pd.Categorical:
    """Return a column of names as categories in sorted order; equal names are one category."""
    return sorted_categories(*encoded(table, name))


def sorted_categories(codes: npt.NDArray[Any], words: list[str]) -> pd.Categorical:
    """Return categories in sorted order, each used, from codes into a list of words."""
    used = np.flatnonzero(np.bincount(codes, minlength=len(words)))
    names, place = np.unique(np.array(words, dtype=object)[used], return_inverse=True)
    code = np.zeros(len(words), np.int32)
    code[used] = place
    return pd.Categorical.from_codes(code[codes], categories=pd.Index(names))


def _one_of(table: pa.Table, name: str, wanted: tuple[str, ...]) -> BoolArray:
    """Return which rows have one of some values in a column of names."""
    codes, words = encoded(table, name)
    return np.asarray(np.array([word in wanted for word in words], dtype=bool)[codes])


_COLUMNS = (
    *("event_id", "rank", "axis", "host"),
    *("start_ns", "end_ns", "wait_start_ns", "wait_end_ns"),
)
"""What tells when a rank was in an operation."""


def unmatched_events(trace: Trace, windows: StepWindows) -> pd.DataFrame:
    """Return when each rank was in its operations, without looking for those of its partners.

    Returns:
        The columns of ``CommunicationEvents`` that one rank alone tells: rank, axis, host, start_ns,
        end_ns, wait_start_ns, wait_end_ns; in the same order.
    """
    collectives, p2p = (
        communication_rows(trace, windows, name)[list(_COLUMNS)] for name in ("collective", "p2p")
    )
    return in_order_of_issue(collectives, p2p)


def in_order_of_issue(collectives: pd.DataFrame, p2p: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of both, so that equal times keep the order of the program.

    Both are emptied: memory holds one column twice, not all.
    """
    parts = [part for part in (collectives, p2p) if len(part)] or [collectives]
    keys = [np.concatenate([part[name] for part in parts]) for name in ("rank", "event_id")]
    order = np.argsort(combined(*keys), kind="stable")
    columns: dict[str, Any] = {}
    for name in [str(column) for column in parts[0] if column != "event_id"]:
        columns[name] = _concatenated([part.pop(name) for part in parts])[order]
    return pd.DataFrame(columns, copy=False)


def _concatenated(parts: list[pd.Series]) -> pd.Categorical | npt.NDArray[Any]:
    """Return the values of all parts; categories stay in sorted order."""
    if isinstance(parts[0].dtype, pd.CategoricalDtype):
        return pd.api.types.union_categoricals(parts, sort_categories=True)
    return np.concatenate([part.to_numpy() for part in parts])
