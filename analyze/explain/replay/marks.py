"""Where each rank's time line is cut: its marks, in program order.

* **issue**: a communication operation began on this rank;
* **wait**: the rank stood still until one was complete;
* **end**: the step was over; the same kind marks the root of a chain of steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...account.ledger.build import NO_EVENT
from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray, narrow
from ...tables.classes import UNATTRIBUTED, class_code, compute_code

END, ISSUE, WAIT = 0, 1, 2
"""Kinds of marks; at one instant a step ends before the next one issues anything."""

Marks = dict[str, npt.NDArray[Any]]
"""Columns of marks: rank, step, mark, event, start_ns, end_ns."""
_NEVER = np.iinfo(np.int64).min
RELEASE_TOLERANCE_NS = 20_000
"""How far the end of an operation and the computing that it releases may lie apart."""


def program_marks(
    windows: StepWindows,
    frame: pd.DataFrame,
    own_join: IntArray,
    segments: pd.DataFrame,
    resolution_ns: float = RELEASE_TOLERANCE_NS,
) -> tuple[pd.DataFrame, int]:
    """Return the marks of all ranks.

    Args:
        windows: The analysed steps.
        frame: Communication events.
        own_join: The operation that completes each event.
        segments: The segments of the ledger.
        resolution_ns: How far apart stamps of one instant may lie.

    Returns:
        rank, step, mark, event (-1 at an end), start_ns, end_ns, work_ns since the mark before it (0 where
        they overlap), join (-1 at an end), is_root (no mark is before it; that of another mark is the row
        before); and how many marks overlap with the one before.
    """
    event = np.arange(len(frame), dtype=np.int32)
    started = frame["start_ns"].to_numpy(np.int64)
    issues = _marks(frame["rank"], frame["step"], ISSUE, event, started, started)
    marks = [issues, _wait_marks(frame, segments, resolution_ns), _end_marks(windows, segments)]
    # Steps without a chain may touch: the end of one is before the root of the next.
    whole, order = _in_program_order(marks, by_step=not windows.chained)
    head = _heads(windows, whole, order)
    heads = {name: whole[name][order[head]] for name in ("rank", "step", "start_ns")}
    first = _window_start(windows, heads)
    # A mark that carries the label of the step but lies before its window comes first.
    columns = _with_roots(whole, order, head, np.minimum(first, heads["start_ns"]))
    root = head + np.arange(len(head))
    work = columns["start_ns"].copy()
    work[1:] -= columns["end_ns"][:-1]
    work[root + 1] = heads["start_ns"] - first
    work[root] = 0
    is_root = np.zeros(len(work), dtype=bool)
    is_root[root] = True
    disorder = int((work < 0).sum())
    own = own_join.astype(np.int32)[columns["event"]] if len(frame) else np.int32(-1)
    columns |= {
        "join": np.where(columns["mark"] == END, np.int32(-1), own),
        "work_ns": np.maximum(work, 0, out=work),
        "is_root": is_root,
    }
    return pd.DataFrame(columns, copy=False), disorder


def _marks(
    rank: pd.Series,
    step: pd.Series,
    mark: int,
    event: npt.ArrayLike,
    start: npt.ArrayLike,
    end: npt.ArrayLike,
) -> Marks:
    """Return marks of one kind as narrow columns: there are two for every operation."""
    return {
        "rank": rank.to_numpy(np.int32),
        "step": narrow(step.to_numpy(np.int64)),
        "mark": np.full(len(rank), mark, np.int8),
        "event": np.asarray(event, dtype=np.int32),
        "start_ns": np.asarray(start, dtype=np.int64),
        "end_ns": np.asarray(end, dtype=np.int64),
    }


def _in_program_order(parts: list[Marks], *, by_step: bool) -> tuple[Marks, IntArray]:
    """Return all marks, and their order by rank (then step), start, kind and end."""
    # In the order of the kinds, so that a stable sort by time leaves equal times in it.
    parts = sorted(parts, key=lambda part: int(part["mark"][:1].sum()))
    whole = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    step = whole["step"] if by_step else np.zeros(1, np.int64)
    order = _by_time(whole["rank"], step, whole["start_ns"])
    if order is None or not _ends_rise(whole, order):
        order = np.lexsort(
            [whole[name] for name in ("end_ns", "mark", "start_ns")]
            + [np.broadcast_to(step, whole["rank"].shape), whole["rank"]]
        )
    return whole, order.astype(np.int32)


def _heads(windows: StepWindows, whole: Marks, order: IntArray) -> IntArray:
    """Return where chains begin: of a rank, or of a run of its steps."""
    opens = _differs(whole["rank"][order])
    if (windows.run != windows.run[:1]).any():
        opens |= _differs(windows.run[np.searchsorted(windows.steps, whole["step"][order])])
    return np.flatnonzero(opens)


def _by_time(rank: IntArray, step: IntArray, start: IntArray) -> IntArray | None:
    """Return the stable order by rank, step and start in one sort; None where they do not fit."""
    if not len(rank):
        return np.empty(0, np.int64)
    origin, first_step = int(start.min()), int(step.min())
    length = int(start.max()) - origin + 1
    steps = int(step.max()) - first_step + 1
    if (int(rank.max()) + 1) * steps * length >= 2**62:
        return None
    place = rank.astype(np.int64)
    if steps > 1:
        place *= steps
        place += step - first_step
    place *= length
    place += start
    place -= origin
    return np.argsort(place, kind="stable")


def _ends_rise(marks: Marks, order: IntArray) -> bool:
    """Return whether marks of one kind that start together are in the order of their ends."""
    start, mark = marks["start_ns"][order], marks["mark"][order]
    # Few do: only these are looked at.
    next_to = np.flatnonzero((start[1:] == start[:-1]) & (mark[1:] == mark[:-1]))
    before, after = order[next_to], order[next_to + 1]
    same = marks["rank"][after] == marks["rank"][before]
    return not (same & (marks["end_ns"][after] < marks["end_ns"][before])).any()


def _differs(column: IntArray) -> npt.NDArray[np.bool_]:
    """Return where a column has another value than the row before."""
    return np.append(True, column[1:] != column[:-1])[: len(column)]


def _with_roots(whole: Marks, order: IntArray, head: IntArray, begin: IntArray) -> Marks:
    """Return the marks in order; a zero-length one begins every chain, so that its first work is an edge."""
    roots = {"mark": END, "event": NO_EVENT, "start_ns": begin, "end_ns": begin}
    # A root has the rank and the step of the mark that it comes before.
    source = np.insert(order, head, order[head]).astype(np.intp)
    place = head + np.arange(len(head))
    columns = {}
    for name in list(whole):
        columns[name] = whole.pop(name)[source]
        if name in roots:
            columns[name][place] = roots[name]
    return columns


def _window_start(windows: StepWindows, heads: Marks) -> IntArray:
    """Return the start of the window that each first mark of a chain lies in."""
    frame = windows.frame
    row = pd.MultiIndex.from_frame(frame[["rank", "step"]])
    keys = [heads[name].astype(np.int64) for name in ("rank", "step")]
    place = row.get_indexer(pd.MultiIndex.from_arrays(keys))
    return frame["start_ns"].to_numpy(np.int64)[place]


def _wait_marks(frame: pd.DataFrame, segments: pd.DataFrame, resolution_ns: float) -> Marks:
    """Return the waits: all that a host recorded, and the inferred ones of the others.

    A host wait that did not block is kept: it is a dependency with slack.
    """
    is_host, end = frame["host"].to_numpy(bool), frame["wait_end_ns"].to_numpy(np.float64)
    begin = frame["wait_start_ns"].to_numpy(np.float64)
    event = np.flatnonzero(is_host & ~np.isnan(end) & ~np.isnan(begin))
    start = begin[event].astype(np.int64)
    ended = end[event].astype(np.int64)
    rank, step = (pd.Series(frame[name].to_numpy()[event]) for name in ("rank", "step"))
    host = _marks(rank, step, WAIT, event, start, ended)
    others = np.flatnonzero(~is_host & frame["end_ns"].notna().to_numpy())
    stalls = _stalls(segments) if len(others) else segments[:0]
    # Ranks that compute all the time wait for nothing, whatever goes on beside it.
    if stalls.empty:
        return host
    found = _inferred_waits(frame, others, stalls, int(resolution_ns))
    inferred = _marks(
        found["rank"], found["step"], WAIT, found["event"], found["start_ns"], found["end_ns"]
    )
    return {name: np.concatenate([host[name], inferred[name]]) for name in host}


def _stalls(segments: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches in which a rank computes nothing: rank, start_ns, end_ns."""
    idle = segments[~compute_code(segments["code"].to_numpy())].astype({"rank": np.int64})
    idle = idle.sort_values(["rank", "start_ns"])
    opens = (idle["rank"] != idle["rank"].shift()) | (idle["start_ns"] != idle["end_ns"].shift())
    return (
        idle.groupby(opens.cumsum().rename("stall"))
        .agg(rank=("rank", "first"), start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
        .reset_index(drop=True)
    )


def _inferred_waits(
    frame: pd.DataFrame, event: IntArray, stalls: pd.DataFrame, resolution_ns: int
) -> pd.DataFrame:
    """Infer waits where only the interval of an operation is known.

    A rank that computes nothing when an operation ends may have waited for it: it
    becomes a dependency of what comes next. It began with the stall, with the
    operation, with the end of the previous one in the stall, or with the rank's
    last issue, whichever was latest. A send releases nothing, unless it is the
    last to end in its stall, the rank issued nothing while it lasted, or issues something
    as soon as it is over. Computing may begin just before the recorded end, by the
    resolution of the stamps.
    """
    chosen = frame.iloc[event]
    ended = chosen["end_ns"].to_numpy(np.int64)
    span = 1 + int(max(ended.max(), stalls["end_ns"].max()))
    rank = chosen["rank"].to_numpy(np.int64)
    started = chosen["start_ns"].to_numpy(np.int64)
    near = np.maximum(ended - resolution_ns, started)
    # A stall that begins as the operation ends has a reason of its own; one that begins with it has not.
    keys = (stalls["rank"] * span + stalls["start_ns"]).to_numpy()
    place = np.searchsorted(keys, rank * span + near, side="right") - 1
    held = stalls.iloc[np.maximum(place, 0)]
    end = np.minimum(ended, held["end_ns"].to_numpy())
    inside = (place >= 0) & (held["rank"].to_numpy() == rank) & (end >= near)
    issue_keys = np.sort(frame["rank"].to_numpy(np.int64) * span + frame["start_ns"].to_numpy())
    until_end = np.searchsorted(issue_keys, rank * span + end)
    last_issue = issue_keys[until_end - 1] - rank * span
    is_blocking = until_end <= np.searchsorted(issue_keys, rank * span + started, side="right")
    following = issue_keys[np.minimum(until_end, len(issue_keys) - 1)] - rank * span
    is_blocking |= (following >= end) & (following - end <= resolution_ns)
    waits = pd.DataFrame(
        {
            "rank": rank,
            "step": chosen["step"].to_numpy(),
            "mark": WAIT,
            "event": event,
            "end_ns": end,
            "stall": place,
            "started": started,
            "begin": np.maximum.reduce([held["start_ns"].to_numpy(), last_issue, started]),
            "is_aside": chosen["is_send"].to_numpy(bool) & ~is_blocking,
        }
    )[inside].sort_values(["stall", "end_ns", "started"])
    is_last = waits["stall"] != waits["stall"].shift(-1)
    waits = waits[~waits["is_aside"] | is_last]
    before = waits["end_ns"].shift().where(waits["stall"] == waits["stall"].shift(), -1)
    begin = np.minimum(np.maximum(waits["begin"], before), waits["end_ns"])
    waits["start_ns"] = begin.astype(np.int64)
    marks: pd.DataFrame = waits[["rank", "step", "mark", "event", "start_ns", "end_ns"]]
    return marks


def _end_marks(windows: StepWindows, segments: pd.DataFrame) -> Marks:
    """Return the end of each step; without a chain, the end of the rank's own last activity."""
    frame = windows.frame
    end = frame["end_ns"].to_numpy(np.int64)
    if not windows.chained:
        busy = segments["code"].to_numpy() != class_code(UNATTRIBUTED)
        own = {name: segments[name].to_numpy() for name in ("rank", "step", "end_ns")}
        # One row for neighbours of one step is enough: they are most of them.
        opens = np.flatnonzero(_differs(own["rank"]) | _differs(own["step"]))
        ends = np.where(busy, own["end_ns"], _NEVER)
        ends = np.maximum.reduceat(ends, opens) if len(opens) else ends
        opens, ends = opens[ends != _NEVER], ends[ends != _NEVER]
        last = pd.Series(ends).groupby([own["rank"][opens], own["step"][opens]]).max()
        row = pd.MultiIndex.from_frame(frame[["rank", "step"]])
        end = (
            last.reindex(row)
            .fillna(pd.Series(frame["end_ns"].to_numpy(), index=row))
            .to_numpy(np.int64)
        )
    event = np.full(len(frame), NO_EVENT)
    return _marks(frame["rank"], frame["step"], END, event, end, end)
