"""What the hosts did, by operator and annotation, and where in their steps they were."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd

from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.intervals import intersect, pair, subtract, total_length, union
from ...tables.trace import Trace, ranks_to_look_at
from .host_waits import is_of_user

_OP_SUMS = ["calls", "total_ns", "self_ns"]
_NOTE_SUMS = ["count", "total_ns", "kernels", "projected_ns", "device_ns"]
STEP_MARK = "ProfilerStep#"


def host_operators(trace: Trace) -> pd.DataFrame:
    """Sum up the operators of all hosts.

    Returns:
        One row an operator, most time of its own first: operator, calls, total_ns (with what it calls),
        self_ns (without), ranks.
    """
    parts = [_operators(trace, rank) for rank in ranks_to_look_at(trace, "op")]
    rows = pd.concat(parts, ignore_index=True)
    sums = rows.groupby("operator", as_index=False)[_OP_SUMS].sum()
    sums["ranks"] = sums["operator"].map(rows.groupby("operator")["rank"].nunique())
    return sums.sort_values(["self_ns", "operator"], ascending=[False, True], ignore_index=True)


def host_time(trace: Trace) -> pd.DataFrame:
    """Return where the thread of each rank with most operators was in those steps in which something of it was recorded.

    Returns:
        rank, thread, step_ns, operator_ns (inside an operator), call_ns (inside a call of the device
        library, and in no operator), outside_ns (in neither); one row a rank with operators.
    """
    rows = []
    for rank in ranks_to_look_at(trace, "op"):
        op = trace.rank_frame("op", rank, ["thread", "start_ns", "dur_ns"])
        if op.empty:
            continue
        thread = int(str(op.groupby("thread")["dur_ns"].sum().idxmax()))
        calls = trace.rank_frame("runtime_call", rank, ["thread", "start_ns", "dur_ns"])
        steps = _recorded_steps(_pairs(trace.rank_frame("step", rank)), op, calls)
        inside = intersect(_intervals(op[op["thread"] == thread]), steps)
        called = intersect(_intervals(calls[calls["thread"] == thread]), steps)
        step_ns, operator_ns = total_length(steps), total_length(inside)
        call_ns = total_length(subtract(called, inside))
        rows.append((rank, thread, step_ns, operator_ns, call_ns, step_ns - operator_ns - call_ns))
    names = ["rank", "thread", "step_ns", "operator_ns", "call_ns", "outside_ns"]
    return pd.DataFrame(rows, columns=names)


def _recorded_steps(steps: IntArray, *events: pd.DataFrame) -> IntArray:
    """Return the steps that an event overlaps: of a job, few steps are traced in depth."""
    recorded = union(np.concatenate([_pairs(rows) for rows in events]))
    at, end = np.searchsorted(recorded[:, 1], steps[:, 0], side="right"), steps[:, 1]
    begins = np.append(recorded[:, 0], np.iinfo(np.int64).max)[at]
    return union(steps[begins < end])


def annotation_sums(trace: Trace) -> pd.DataFrame:
    """Sum up the annotations of all hosts, steps left out, with their projection to the device.

    The projection of one is from the first start to the last end of the device work that its thread launched in
    it, as ``nvtx_gpu_proj_sum`` of Nsight Systems has it.

    Returns:
        One row a name, most time first: annotation, count, total_ns (on the host), kernels, projected_ns,
        device_ns (durations of that work together), ranks.
    """
    parts = [_annotations(trace, rank) for rank in ranks_to_look_at(trace, "annotation")]
    rows = pd.concat(parts, ignore_index=True)
    sums = rows.groupby("annotation", as_index=False)[_NOTE_SUMS].sum()
    sums["ranks"] = sums["annotation"].map(rows.groupby("annotation")["rank"].nunique())
    by = ["projected_ns", "total_ns", "annotation"]
    return sums.sort_values(by, ascending=[False, False, True], ignore_index=True)


def _operators(trace: Trace, rank: int) -> pd.DataFrame:
    op = trace.rank_frame("op", rank, ["name_id", "thread", "start_ns", "dur_ns"])
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    rows = pd.DataFrame(
        {
            "name_id": op["name_id"].to_numpy(),
            "total_ns": op["dur_ns"].to_numpy(np.int64),
            "self_ns": own_times(op),
        }
    )
    sums = rows.groupby("name_id", as_index=False).agg(
        calls=("total_ns", "size"), total_ns=("total_ns", "sum"), self_ns=("self_ns", "sum")
    )
    return sums.assign(rank=rank, operator=sums["name_id"].map(names).fillna("unknown").astype(str))


def own_times(op: pd.DataFrame) -> IntArray:
    """Return the time of each operator without those directly inside it on its thread, ns.

    Args:
        op: thread, start_ns and dur_ns of each.
    """
    own = np.zeros(len(op), dtype=np.int64)
    threads = op["thread"].to_numpy(np.int64)
    start, dur = op["start_ns"].to_numpy(np.int64), op["dur_ns"].to_numpy(np.int64)
    for thread in np.unique(threads).tolist():
        places = np.flatnonzero(threads == thread)
        own[places] = self_times(start[places], dur[places])
    return own


def self_times(start: IntArray, dur: IntArray) -> IntArray:
    """Return the length of each interval without those directly inside it; intervals nest.

    >>> self_times(np.array([0, 2, 3]), np.array([10, 5, 1])).tolist()
    [5, 4, 1]
    """
    count = len(start)
    order = np.lexsort((-dur, start))
    begin, length = start[order], dur[order]
    index = np.arange(count)
    depth = index + 1 - np.searchsorted(np.sort(begin + length), begin, side="right")
    keys = np.sort(depth * count + index)
    place = np.searchsorted(keys, (depth - 1) * count + index, side="left") - 1
    parent = keys[np.maximum(place, 0)] % max(count, 1)
    has_parent = (depth > 1) & (place >= 0)
    inside = np.bincount(parent[has_parent], weights=length[has_parent], minlength=count)
    found = np.zeros(count, dtype=np.int64)
    found[order] = np.maximum(length - inside.astype(np.int64), 0)
    return found


def _annotations(trace: Trace, rank: int) -> pd.DataFrame:
    note = trace.rank_frame(
        "annotation", rank, ["device", "thread", "name_id", "start_ns", "dur_ns"]
    )
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    note = note.assign(annotation=note["name_id"].map(names).fillna("unknown").astype(str))
    note = note[(note["device"] < 0) & ~note["annotation"].str.startswith(STEP_MARK)]
    projected = _projected(trace, rank, note)
    return (
        note[["annotation"]]
        .reset_index(drop=True)
        .assign(rank=rank, count=1, total_ns=note["dur_ns"].to_numpy(np.int64), **projected)
    )


def _projected(trace: Trace, rank: int, note: pd.DataFrame) -> dict[str, IntArray]:
    """Return kernels, projected_ns and device_ns of each annotation."""
    kernel = trace.rank_frame("kernel", rank, ["start_ns", "dur_ns", "launch_ns", "correlation"])
    kernel = kernel[kernel["launch_ns"].notna()]
    calls = trace.rank_frame("runtime_call", rank, ["correlation", "thread"])
    of_call = calls[calls["correlation"] > 0].drop_duplicates("correlation")
    thread_of = of_call.set_index("correlation")["thread"]
    thread = kernel["correlation"].map(thread_of).fillna(-1).to_numpy(np.int64)
    launch = kernel["launch_ns"].to_numpy(np.int64)
    start = kernel["start_ns"].to_numpy(np.int64)
    dur = kernel["dur_ns"].to_numpy(np.int64)
    found = {
        name: np.zeros(len(note), np.int64) for name in ("kernels", "projected_ns", "device_ns")
    }
    own_thread = note["thread"].to_numpy(np.int64)
    begin = note["start_ns"].to_numpy(np.int64)
    end = begin + note["dur_ns"].to_numpy(np.int64)
    for one in np.intersect1d(thread, own_thread).tolist():
        order = np.flatnonzero(thread == one)
        order = order[np.argsort(launch[order], kind="stable")]
        places = np.flatnonzero(own_thread == one)
        low = np.searchsorted(launch[order], begin[places])
        high = np.searchsorted(launch[order], end[places])
        some = high > low
        bounds = np.column_stack([low[some], high[some]]).ravel()
        busy = np.append(0, np.cumsum(dur[order]))
        first = np.minimum.reduceat(np.append(start[order], 1 << 62), bounds)[::2]
        last = np.maximum.reduceat(np.append(start[order] + dur[order], -(1 << 62)), bounds)[::2]
        at = places[some]
        found["kernels"][at] = (high - low)[some]
        found["device_ns"][at] = busy[high[some]] - busy[low[some]]
        found["projected_ns"][at] = last - first
    return found


def _intervals(rows: pd.DataFrame) -> IntArray:
    return union(_pairs(rows))


def _pairs(rows: pd.DataFrame) -> IntArray:
    start = rows["start_ns"].to_numpy(np.int64)
    return pair(start, start + rows["dur_ns"].to_numpy(np.int64))


OPERATOR, CALL, ANNOTATION, FUNCTION, NOTHING = (
    "operator", "call", "annotation", "function", "nothing",
)  # fmt: skip
_TIMES = ["name_id", "thread", "start_ns", "dur_ns"]
_SHOWN = 3
"""Names that are given of each kind."""


class Named(NamedTuple):
    """What hosts spent most time in."""

    name: str
    frac: float
    """Share of the steps; of a name on several threads at once, more than 1 is possible."""


class HostReport(msgspec.Struct, frozen=True):
    """Time of the hosts in those analysed steps in which something of them was recorded."""

    frac: dict[str, float]
    """Share of the steps in an operator on any thread; else in a call of the device library; else in
    an annotation; else in a Python function that lasted long enough to be read; else in nothing that was recorded."""
    operators: list[Named]
    """Most time of their own first."""
    annotations: list[Named]
    """Longest first, each counted once where several threads are in it."""
    functions: list[Named]
    """Python functions of the user, most time without other such functions first."""


def host_report(trace: Trace, windows: StepWindows) -> HostReport | None:
    """Return where the hosts were; None where nothing was recorded of them in an analysed step."""
    time, step_ns = dict.fromkeys((OPERATOR, CALL, ANNOTATION, FUNCTION, NOTHING), 0), 0
    operators, annotations, functions = [], [], []
    for rank in ranks_to_look_at(trace, "op", "annotation", "python_call"):
        op = trace.rank_frame("op", rank, _TIMES)
        note = trace.rank_frame("annotation", rank, [*_TIMES, "device"])
        names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
        note = note[(note["device"] < 0) & ~_named(note, names).str.startswith(STEP_MARK)]
        calls = trace.rank_frame("runtime_call", rank, ["start_ns", "dur_ns"])
        python = trace.rank_frame("python_call", rank, _TIMES)
        steps = _recorded_steps(windows.intervals_of(rank), op, note, python)
        left = steps
        for kind, rows in ((OPERATOR, op), (CALL, calls), (ANNOTATION, note), (FUNCTION, python)):
            inside = _intervals(rows)
            time[kind] += total_length(intersect(left, inside))
            left = subtract(left, inside)
        time[NOTHING] += total_length(left)
        step_ns += total_length(steps)
        operators.append(_own_times(op.assign(name=_named(op, names)), steps))
        annotations.append(_lengths(note.assign(name=_named(note, names)), steps))
        python = _of_threads(python.assign(name=_named(python, names)), op, note)
        functions.append(_own_times(_within(_of_user(python), windows.intervals_of(rank)), steps))
    if not step_ns:
        return None
    frac = {kind: spent / step_ns for kind, spent in time.items()}
    most = (_most(found, step_ns) for found in (operators, annotations, functions))
    return HostReport(frac, *most)


def _of_user(python: pd.DataFrame) -> pd.DataFrame:
    """Return the Python functions that are not of torch or built in; all where there are none."""
    of_user = python["name"].map(is_of_user).to_numpy(bool)
    return (python[of_user] if of_user.any() else python).reset_index(drop=True)


def _of_threads(python: pd.DataFrame, *events: pd.DataFrame) -> pd.DataFrame:
    """Return the Python functions of threads that do work: others, as of a data loader, mostly wait."""
    working = pd.concat([rows["thread"] for rows in events])
    return python[python["thread"].isin(working)] if len(working) else python


def _within(python: pd.DataFrame, steps: IntArray) -> pd.DataFrame:
    """Return the functions that end in the step in which they began: not the loop around the steps."""
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    start = python["start_ns"].to_numpy(np.int64)
    step = np.searchsorted(steps[:, 0], start, side="right") - 1
    ends = (start + python["dur_ns"].to_numpy(np.int64)) <= np.append(steps[:, 1], 0)[step]
    inside = np.flatnonzero((step >= 0) & ends)
    return python.iloc[inside].reset_index(drop=True)


def _named(rows: pd.DataFrame, names: pd.Series) -> pd.Series:
    return rows["name_id"].map(names).fillna("unknown").astype(str)


def _own_times(op: pd.DataFrame, steps: IntArray) -> pd.Series:
    """Return the own time by name of the operators or functions that began in a step."""
    own, start = own_times(op), op["start_ns"].to_numpy(np.int64)
    step = np.searchsorted(steps[:, 0], start, side="right") - 1
    inside = (step >= 0) & (start < np.append(steps[:, 1], 0)[step])
    return pd.Series(own[inside]).groupby(op["name"].to_numpy()[inside]).sum()


def _lengths(note: pd.DataFrame, steps: IntArray) -> pd.Series:
    """Return by name how long at least one thread was in an annotation during steps."""
    lengths = {
        str(name): total_length(intersect(_intervals(rows), steps))
        for name, rows in note.groupby("name")
    }
    return pd.Series(lengths, dtype=np.int64)


def _most(by_rank: list[pd.Series], step_ns: int) -> list[Named]:
    total = pd.concat(by_rank)
    total = total.groupby(level=0).sum().sort_values(ascending=False, kind="stable")
    shown = total[total > 0].head(_SHOWN)
    return [Named(str(name), int(spent) / step_ns) for name, spent in shown.items()]
