"""How exact the stamps of a capture are, and a trace in which that no longer shows.

Other tools stamp operations from a second thread, a timer or an event of the device, and round
them: what runs one after the other on a rank overlaps by microseconds, sometimes by a hundred. An
operation that ends a little after the next one began looks as if the rank had gone on meanwhile, and
all its waiting as if it had been work. The capture itself tells how large that error is: computing of
one rank cannot overlap, and beside it overlaps are either as small as its, or as long as an
operation that really runs aside.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.terms import TimeSource

from ...tables.arrays import BoolArray, FloatArray, IntArray, combined
from ...tables.classes import COMPUTE_CLASSES, SPAN_CLASS
from ...tables.trace import Trace

LEAST_NS = 20_000
"""Stamps of a device's own activities may lie that far apart: launching takes as long."""
MOST_NS = 3_000_000
"""No capture is believed to be as inexact as this: stamps of one instant scatter by 0.1 ms in real ones."""
MOST_FRAC = 0.02
"""Nor as this share of its median computation."""
STEP_UP = 2.0
"""Overlaps up to that many times the next smaller one are of the same kind."""
MARGIN = 1.25
"""The largest error that was seen is not the largest there is."""
_TABLES = ("span", "collective", "p2p")


class Stamps(NamedTuple):
    """A trace whose operations follow one another as the program issued them."""

    trace: Trace
    resolution_ns: float
    """How far apart stamps of one instant may lie."""


def settled(trace: Trace) -> Stamps:
    """Return the trace with what lies within the resolution of its stamps in the order of the program.

    Only of intervals that another tool recorded and that are no activities of a device: hosts that
    recorded waits, and device streams, have exact orders of their own.
    """
    if trace.row_count("kernel") or not _is_imported(trace) or not trace.row_count("span"):
        return Stamps(trace, float(LEAST_NS))
    acts = _activities(trace)
    resolution_ns = _resolution(acts)
    start = _starts_in_order(acts, resolution_ns)
    end = _ends_before_next(acts, start, resolution_ns)
    if (start == acts.start_ns).all() and (end == acts.end_ns).all():
        return Stamps(trace, resolution_ns)
    return Stamps(trace.with_tables(_tables(trace, acts, start, end)), resolution_ns)


class _Activities(NamedTuple):
    """What ranks did, one row an interval of the tables, by rank (and step) and start."""

    table: IntArray
    """Which of the tables."""
    row: IntArray
    """Its row there."""
    line: IntArray
    """Equal for what has one time line: the rank, and the step where each has its own origin."""
    within: IntArray
    """Equal for the rows of one rank and step."""
    identity: IntArray
    """Equal for the same operation of the program, in all steps and on all ranks of a stage."""
    is_compute: BoolArray
    start_ns: IntArray
    end_ns: IntArray


def _is_imported(trace: Trace) -> bool:
    """Tell whether all communication is intervals that another tool recorded."""
    for name in ("collective", "p2p"):
        if trace.row_count(name):
            sources = set(trace.tables[name]["source"].unique().to_pylist())
            if sources != {TimeSource.IMPORTED.value}:
                return False
    return True


def _activities(trace: Trace) -> _Activities:
    parts = [_of_table(trace, number, name) for number, name in enumerate(_TABLES)]
    frame = pd.concat(parts, ignore_index=True)
    frame = frame[frame["end_ns"] >= frame["start_ns"]]
    frame = frame.sort_values(["rank", "step", "start_ns", "end_ns"], kind="stable")
    rank, step = (frame[name].to_numpy(np.int64) for name in ("rank", "step"))
    what = pd.factorize(frame["what"])[0].astype(np.int64)
    within = combined(rank, step)
    number = np.asarray(pd.Series(what).groupby(combined(within, what)).cumcount(), np.int64)
    line = within if trace.per_step_clock else rank
    order = np.lexsort((frame["end_ns"].to_numpy(), frame["start_ns"].to_numpy(), line))
    frame = frame.iloc[order]
    return _Activities(
        table=frame["table"].to_numpy(np.int64),
        row=frame["row"].to_numpy(np.int64),
        line=line[order],
        within=within[order],
        identity=combined(_stages(trace, rank), what, number)[order],
        is_compute=frame["is_compute"].to_numpy(bool),
        start_ns=frame["start_ns"].to_numpy(np.int64),
        end_ns=frame["end_ns"].to_numpy(np.int64),
    )


def _stages(trace: Trace, rank: IntArray) -> IntArray:
    """Return what ranks of one program share: their stage, or themselves where no mesh is known."""
    if trace.layout is None:
        return rank
    own, place = np.unique(rank, return_inverse=True)
    stages = [trace.layout.coordinates(int(one))["pp"] for one in own]
    return np.asarray(stages, dtype=np.int64)[place]


def _of_table(trace: Trace, number: int, name: str) -> pd.DataFrame:
    """Return the intervals of one table: rank, step, what, is_compute, start_ns, end_ns, table, row."""
    frame = trace.frame(name)
    is_span = name == "span"
    kind = frame["kind" if name != "p2p" else "direction"].astype(str)
    start = frame["start_ns"].astype(np.int64)
    end = start + frame["dur_ns"] if is_span else frame["end_ns"]
    known = end.notna().to_numpy(bool)
    rows = pd.DataFrame(
        {
            "rank": frame["rank"],
            "step": frame["step"],
            "what": f"{name} " + kind + ("" if is_span else " " + frame["axis"].astype(str)),
            "is_compute": is_span & kind.replace(SPAN_CLASS).isin(COMPUTE_CLASSES),
            "start_ns": start,
            "end_ns": end.fillna(0).astype(np.int64),
            "table": number,
            "row": np.arange(len(frame)),
        }
    )
    return rows[known]


def _resolution(acts: _Activities) -> float:
    """Return how far apart stamps of one instant lie in this capture, ns.

    The overlaps of computing with computing, and from there on up as long as the next larger
    overlap of any two neighbours is not far larger; so are starts that came in another order than usual.
    """
    start, end, line = acts.start_ns, acts.end_ns, acts.line
    follows = (line[1:] == line[:-1]) & (start[1:] > start[:-1]) & (end[1:] > end[:-1])
    overlap = end[:-1] - start[1:]
    shorter = np.minimum(end - start, 2**62)
    small = overlap < np.minimum(shorter[:-1], shorter[1:])
    both = acts.is_compute[1:] & acts.is_compute[:-1]
    computing = (end - start)[acts.is_compute]
    most = min(MOST_NS, MOST_FRAC * float(np.median(computing))) if len(computing) else MOST_NS
    # Somewhat longer ones are looked at too: they tell whether the longest error stands apart.
    seen = np.append(overlap[follows & small & (overlap > 0)], _inverted(acts))
    seen = seen[seen <= STEP_UP * most]
    of_computing = overlap[follows & small & both & (overlap > 0) & (overlap <= most)]
    base = max(float(LEAST_NS), MARGIN * float(of_computing.max(initial=0)))
    larger = np.sort(seen[seen > base]).astype(np.float64)
    steps = np.append(base, larger)
    apart = np.flatnonzero(steps[1:] > STEP_UP * steps[:-1])
    reached = float(steps[apart[0]] if len(apart) else steps[-1])
    # Overlaps of all lengths are of operations that run aside: nothing separates errors from them.
    return base if reached > most else max(base, MARGIN * reached)


def _starts_in_order(acts: _Activities, resolution_ns: float) -> IntArray:
    """Return the starts, with those closer than the resolution in the order of the program.

    That is the order which most steps have. Rows of one such cluster exchange their starts.
    """
    new_step, position, usual = _positions(acts)
    apart = np.append(0, np.diff(acts.start_ns)) > resolution_ns
    cluster = np.cumsum(new_step | apart)
    # Where two come first equally often, the order must still be the same in all steps.
    order = np.lexsort((position, acts.identity, usual, cluster))
    start = np.empty_like(acts.start_ns)
    start[order] = acts.start_ns
    return start


def _positions(acts: _Activities) -> tuple[BoolArray, IntArray, FloatArray]:
    """Return where steps begin, the place of each row in its step, and the usual one of its like."""
    new_step = np.append(True, acts.within[1:] != acts.within[:-1])
    row = np.arange(len(new_step))
    position = row - np.maximum.accumulate(np.where(new_step, row, 0))
    usual = pd.Series(position).groupby(acts.identity).transform("median").to_numpy(np.float64)
    return new_step, position, usual


def _inverted(acts: _Activities) -> IntArray:
    """Return by how much neighbours of the usual order started in the other order."""
    _, _, usual = _positions(acts)
    order = np.lexsort((acts.identity, usual, acts.within))
    within, start = acts.within[order], acts.start_ns[order]
    by_ns = start[:-1] - start[1:]
    return np.asarray(by_ns[(within[1:] == within[:-1]) & (by_ns > 0)])


def _ends_before_next(acts: _Activities, start: IntArray, resolution_ns: float) -> IntArray:
    """Return the ends, none a little after the start of what came next.

    Of an interval that reaches over another by more, that is what happened.
    """
    end = np.maximum(acts.end_ns, start)
    origin = int(start.min(initial=0))
    length = int(end.max(initial=0)) - origin + int(resolution_ns) + 2
    line = np.unique(acts.line, return_inverse=True)[1].astype(np.int64)
    keys = np.sort(line * length + (start - origin))
    earliest = np.maximum(end - int(resolution_ns), start + 1)
    place = np.searchsorted(keys, line * length + (earliest - origin))
    following = keys[np.minimum(place, len(keys) - 1)] - line * length + origin
    is_near = (place < len(keys)) & (following >= earliest) & (following < end)
    return np.asarray(np.where(is_near, following, end))


def _tables(trace: Trace, acts: _Activities, start: IntArray, end: IntArray) -> dict[str, pa.Table]:
    """Return the tables with other starts and ends."""
    changed = {}
    for number, name in enumerate(_TABLES):
        own = acts.table == number
        if not own.any():
            continue
        row, table = acts.row[own], trace.tables[name]
        columns = {"start_ns": start[own]}
        columns |= {"dur_ns": end[own] - start[own]} if name == "span" else {"end_ns": end[own]}
        if name != "span":
            columns["issue_ns"] = start[own]
        for column, values in columns.items():
            table = _with_values(table, column, row, values)
        changed[name] = table
    return changed


def _with_values(table: pa.Table, column: str, row: IntArray, values: IntArray) -> pa.Table:
    """Return a table with other values in some rows of a column; the unknown ones stay unknown."""
    old = table[column]
    mask = old.is_null().to_numpy()
    new = old.fill_null(0).to_numpy().copy()
    new[row[~mask[row]]] = values[~mask[row]]
    place = table.schema.get_field_index(column)
    return table.set_column(place, table.schema.field(column), pa.array(new, old.type, mask=mask))
