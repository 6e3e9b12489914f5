"""Finding what a rank did at a time, over all ranks at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import SpanKind

from ...tables.arrays import FloatArray, IntArray, narrow
from ...tables.trace import Trace
from .windows import StepWindows

Times = FloatArray | IntArray
_KINDS = {
    SpanKind.FORWARD.value: "forward",
    SpanKind.BACKWARD.value: "backward",
    SpanKind.BACKWARD_INPUT.value: "backward",
    SpanKind.BACKWARD_WEIGHT.value: "backward",
    SpanKind.RECOMPUTE.value: "backward",
}


def microbatch_spans(trace: Trace, windows: StepWindows) -> pd.DataFrame:
    """Return the forward and backward spans of the analysed steps, in order of time.

    Returns:
        rank, step, microbatch, chunk, kind (``forward`` or ``backward``), is_forward, start_ns
        (shifted), dur_ns.
    """
    spans = windows.select(trace.frame("span"))
    kinds = spans["kind"].astype("category").cat
    ways = np.array([*(_KINDS.get(str(name)) for name in kinds.categories), None], dtype=object)
    code = kinds.codes.to_numpy()
    is_pass = np.array([way is not None for way in ways])[code]
    known = is_pass & (spans["microbatch"] >= 0).to_numpy(bool)
    start = windows.shifted(spans["step"], spans["start_ns"])
    names = ("rank", "step", "microbatch", "chunk")
    columns = {name: narrow(spans[name].to_numpy(np.int64)[known]) for name in names}
    columns["dur_ns"] = spans["dur_ns"].to_numpy(np.int64)[known]
    way, is_forward = ways[code[known]], (ways == _KINDS[SpanKind.FORWARD.value])[code[known]]
    columns |= {"kind": way, "is_forward": is_forward}
    columns["start_ns"] = np.asarray(start, dtype=np.int64)[known]
    rows = pd.DataFrame(columns, copy=False)
    if are_in_order(rows["rank"].to_numpy(), rows["start_ns"].to_numpy()):
        return rows
    return rows.sort_values(["rank", "start_ns"], ignore_index=True)


def are_in_order(rank: IntArray, time: Times) -> bool:
    """Tell whether rows are sorted by rank and time."""
    later = (rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (time[1:] >= time[:-1]))
    return bool(later.all())


def last_before(row_rank: IntArray, row_time: Times, rank: IntArray, time: Times) -> IntArray:
    """Return the last row at or before each (rank, time), in rows sorted by both; -1 for none.

    A row of a lower rank is one, too.
    """
    count = len(row_rank)
    keys = _on_one_line((row_rank, row_time), (rank, time))
    if keys is not None:
        return np.asarray(np.searchsorted(keys[0], keys[1], side="right") - 1)
    is_query = np.append(np.zeros(count), np.ones(len(rank)))
    order = np.lexsort((is_query, np.append(row_time, time), np.append(row_rank, rank)))
    latest = np.maximum.accumulate(np.where(order < count, order, -1))
    place = np.empty(len(order), np.int64)
    place[order] = latest
    return place[count:]


def _on_one_line(*places: tuple[IntArray, Times]) -> list[IntArray] | None:
    """Return ranks and whole times as numbers in their order; None where they do not fit."""
    if not all(len(time) and time.dtype.kind == "i" for _, time in places):
        return None
    origin = min(int(time.min()) for _, time in places)
    length = max(int(time.max()) for _, time in places) - origin + 1
    if (max(int(rank.max()) for rank, _ in places) + 1) * length >= 2**62:
        return None
    return [
        rank.astype(np.int64) * length + (time.astype(np.int64) - origin) for rank, time in places
    ]


def overlaps(
    outer: pd.DataFrame, inner: pd.DataFrame
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return where intervals of one table meet those of another, on the same rank.

    Args:
        outer: rank, start_ns, end_ns in any order.
        inner: The same columns, in the order of rank and start, without overlaps on a rank.

    Returns:
        Row of outer, row of inner, start and end of what they share; in the order of outer.
    """
    rows = [inner[name].to_numpy(np.int64) for name in ("rank", "start_ns", "end_ns")]
    rank, start, end = (outer[name].to_numpy(np.int64) for name in ("rank", "start_ns", "end_ns"))
    first = last_before(rows[0], rows[1], rank, start)
    last = last_before(rows[0], rows[1], rank, end)
    first = np.maximum(first, 0)
    count = np.maximum(last - first + 1, 0)
    own = np.repeat(np.arange(len(outer)), count)
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[own]
    low = np.maximum(start[own], rows[1][place])
    high = np.minimum(end[own], rows[2][place])
    meets = (low < high) & (rows[0][place] == rank[own])
    return own[meets], place[meets], low[meets], high[meets]


def steps_around_passes(
    rank: IntArray, kind: pd.Series, start: IntArray, dur_ns: IntArray
) -> npt.NDArray[np.bool_]:
    """Return which spans are optimizer steps that evaluate the model, as with a closure.

    Their passes are reported as passes; the optimizer is what is left of its step. One that runs
    inside a backward pass has none in it.
    """
    around = np.zeros(len(rank), dtype=bool)
    steps = np.flatnonzero((kind == "optimizer").to_numpy())
    forwards = np.flatnonzero((kind == "forward").to_numpy())
    passes = forwards[np.lexsort((start[forwards], rank[forwards]))]
    before, within = (
        last_before(rank[passes], start[passes], rank[steps], instant)
        for instant in (start[steps] - 1, start[steps] + dur_ns[steps] - 1)
    )
    around[steps] = within > before
    return around
