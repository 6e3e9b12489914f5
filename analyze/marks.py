"""Where each rank's time line is cut: its marks, in program order.

* **issue**: a communication operation began on this rank;
* **wait**: the rank stood still until one was complete;
* **end**: the step was over; the same kind marks the root of a chain of steps.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from .intervals import IntArray
from .ledger import NO_EVENT, UNATTRIBUTED, class_code, compute_code
from .steps import StepWindows

END, ISSUE, WAIT = 0, 1, 2
"""Kinds of marks; at one instant a step ends before the next one issues anything."""

RELEASE_TOLERANCE_NS = 20_000
"""How far the end of an operation and the computing that it releases may lie apart."""


def program_marks(
    windows: StepWindows, frame: pd.DataFrame, own_join: IntArray, segments: pd.DataFrame
) -> pd.DataFrame:
    """Return the marks of all ranks.

    Args:
        windows: The analysed steps.
        frame: Communication events.
        own_join: The operation that completes each event.
        segments: The segments of the ledger.

    Returns:
        rank, step, mark, event (-1 at an end), start_ns, end_ns, previous (row of the
        mark before it, -1 at a root), work_ns and raw_work_ns between the two (the
        raw one is negative where marks overlap), join (-1 at an end), is_root.
    """
    event = np.arange(len(frame))
    issues = pd.DataFrame(
        {
            "rank": frame["rank"],
            "step": frame["step"],
            "mark": ISSUE,
            "event": event,
            "start_ns": frame["start_ns"].astype(np.int64),
            "end_ns": frame["start_ns"].astype(np.int64),
        }
    )
    ends = _end_marks(windows, segments)
    marks = pd.concat([issues, _wait_marks(frame, segments), ends], ignore_index=True)
    # Steps without a chain may touch: the end of one is before the root of the next.
    steps = [] if windows.chained else ["step"]
    marks = marks.sort_values(["rank", *steps, "start_ns", "mark", "end_ns"], ignore_index=True)
    marks["join"] = np.where(
        marks["mark"] == END, -1, own_join[marks["event"]] if len(frame) else -1
    )
    same = marks["rank"].to_numpy()[1:] == marks["rank"].to_numpy()[:-1]
    if not windows.chained:
        same &= marks["step"].to_numpy()[1:] == marks["step"].to_numpy()[:-1]
    previous = np.append(False, same)
    marks["previous"] = np.where(previous, np.arange(len(marks)) - 1, -1)
    raw = marks["start_ns"].to_numpy() - np.append(0, marks["end_ns"].to_numpy()[:-1])
    first = _window_start(windows, marks)
    marks["raw_work_ns"] = np.where(previous, raw, marks["start_ns"] - first)
    marks["work_ns"] = marks["raw_work_ns"].clip(lower=0)
    return _with_roots(marks, first, steps)


def _with_roots(marks: pd.DataFrame, first: IntArray, steps: list[str]) -> pd.DataFrame:
    """Put a zero-length mark at the start of every chain, so that its first work is an edge."""
    heads = marks[marks["previous"] < 0]
    # A mark that carries the label of the step but lies before its window comes first.
    begin = np.minimum(first[heads.index], heads["start_ns"].to_numpy())
    roots = heads.assign(
        mark=END,
        event=NO_EVENT,
        join=-1,
        start_ns=begin,
        end_ns=begin,
        work_ns=0,
        raw_work_ns=0,
        is_root=True,
    )
    marks = pd.concat([roots, marks.assign(is_root=False)], ignore_index=True)
    marks = marks.sort_values(
        ["rank", *steps, "start_ns", "is_root", "mark", "end_ns"],
        ascending=[True] * len(steps) + [True, True, False, True, True],
        ignore_index=True,
        kind="stable",
    )
    marks["previous"] = np.where(marks["is_root"], -1, np.arange(len(marks)) - 1)
    return marks


def _window_start(windows: StepWindows, marks: pd.DataFrame) -> IntArray:
    frame = windows.frame
    row = pd.MultiIndex.from_frame(frame[["rank", "step"]])
    place = row.get_indexer(pd.MultiIndex.from_frame(marks[["rank", "step"]]))
    return frame["start_ns"].to_numpy(np.int64)[place]


def _wait_marks(frame: pd.DataFrame, segments: pd.DataFrame) -> pd.DataFrame:
    """Return the waits: all that a host recorded, and the inferred ones of the others.

    A host wait that did not block is kept: it is a dependency with slack.
    """
    event = np.flatnonzero((frame["host"] & frame["wait_end_ns"].notna()).to_numpy(bool))
    recorded = frame.iloc[event]
    host = pd.DataFrame(
        {
            "rank": recorded["rank"],
            "step": recorded["step"],
            "mark": WAIT,
            "event": event,
            "start_ns": recorded["wait_start_ns"].astype(np.int64),
            "end_ns": recorded["wait_end_ns"].astype(np.int64),
        }
    )
    others = np.flatnonzero((~frame["host"] & frame["end_ns"].notna()).to_numpy(bool))
    if not len(others):
        return host
    return pd.concat([host, _inferred_waits(frame, others, _stalls(segments))], ignore_index=True)


def _stalls(segments: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches in which a rank computes nothing: rank, start_ns, end_ns."""
    idle = segments[~compute_code(segments["code"].to_numpy())].sort_values(["rank", "start_ns"])
    opens = (idle["rank"] != idle["rank"].shift()) | (idle["start_ns"] != idle["end_ns"].shift())
    return (
        idle.groupby(opens.cumsum().rename("stall"))
        .agg(rank=("rank", "first"), start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
        .reset_index(drop=True)
    )


def _inferred_waits(frame: pd.DataFrame, event: IntArray, stalls: pd.DataFrame) -> pd.DataFrame:
    """Infer waits where only the interval of an operation is known.

    A rank that computes nothing when an operation ends may have waited for it: it
    becomes a dependency of what comes next. It began with the stall, with the
    operation, with the end of the previous one in the stall, or with the rank's
    last issue, whichever was latest. A send releases nothing, unless it is the
    last to end in its stall. Computing may begin just before the recorded end,
    by the resolution of the stamps.
    """
    chosen = frame.iloc[event]
    ended = chosen["end_ns"].to_numpy(np.int64)
    span = 1 + int(max(ended.max(), stalls["end_ns"].max()))
    rank = chosen["rank"].to_numpy(np.int64)
    started = chosen["start_ns"].to_numpy(np.int64)
    near = np.maximum(ended - RELEASE_TOLERANCE_NS, started)
    place = (
        np.searchsorted((stalls["rank"] * span + stalls["start_ns"]).to_numpy(), rank * span + near)
        - 1
    )
    held = stalls.iloc[np.maximum(place, 0)]
    end = np.minimum(ended, held["end_ns"].to_numpy())
    inside = (place >= 0) & (held["rank"].to_numpy() == rank) & (end >= near)
    issue_keys = np.sort((frame["rank"] * span + frame["start_ns"]).to_numpy(np.int64))
    last_issue = issue_keys[np.searchsorted(issue_keys, rank * span + end) - 1] - rank * span
    waits = pd.DataFrame(
        {
            "rank": rank,
            "step": chosen["step"].to_numpy(),
            "mark": WAIT,
            "event": event,
            "end_ns": end,
            "stall": place,
            "begin": np.maximum.reduce([held["start_ns"].to_numpy(), last_issue, started]),
            "is_send": chosen["is_send"].to_numpy(bool),
        }
    )[inside].sort_values(["stall", "end_ns"])
    is_last = waits["stall"] != waits["stall"].shift(-1)
    waits = waits[~waits["is_send"] | is_last]
    before = waits["end_ns"].shift().where(waits["stall"] == waits["stall"].shift(), -1)
    begin = np.minimum(np.maximum(waits["begin"], before), waits["end_ns"])
    waits["start_ns"] = begin.astype(np.int64)
    marks: pd.DataFrame = waits[["rank", "step", "mark", "event", "start_ns", "end_ns"]]
    return marks


def _end_marks(windows: StepWindows, segments: pd.DataFrame) -> pd.DataFrame:
    """Return the end of each step; without a chain, the end of the rank's own last activity."""
    frame = windows.frame
    end = frame["end_ns"].to_numpy(np.int64)
    if not windows.chained:
        busy = segments[segments["code"] != class_code(UNATTRIBUTED)]
        last = busy.groupby(["rank", "step"])["end_ns"].max()
        row = pd.MultiIndex.from_frame(frame[["rank", "step"]])
        end = (
            last.reindex(row)
            .fillna(pd.Series(frame["end_ns"].to_numpy(), index=row))
            .to_numpy(np.int64)
        )
    return pd.DataFrame(
        {
            "rank": frame["rank"],
            "step": frame["step"],
            "mark": END,
            "event": NO_EVENT,
            "start_ns": end,
            "end_ns": end,
        }
    )
