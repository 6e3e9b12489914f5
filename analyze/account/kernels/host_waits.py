"""Calls of the host that wait for the device, where they are made, and what they cost.

The host cannot launch while it waits, so the device has nothing to do from the end of
what was launched until the next launch. Where a call is made is the operator, or the
Python function, around it on its thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ...tables.arrays import FloatArray, IntArray
from ...tables.intervals import covered_length
from ...tables.trace import Trace, ranks_to_look_at
from .idle import WAITING_CALL, starved_intervals
from .places import kernel_places

_BUILT_IN = re.compile(
    r"<built-in (?:method|function) (?P<name>\S*)(?: of (?P<type>\S+) object at 0x[0-9a-f]+)?>"
)

_NOT_OF_USER = ("<", "torch/", "nn.Module: ")


def outermost_operator(
    trace: Trace, rank: int, calls: pd.DataFrame
) -> tuple[npt.NDArray[np.object_], IntArray]:
    """Return name and id of the outermost operator around each call on its thread; "" and -1 if none.

    Args:
        trace: The capture.
        rank: The rank.
        calls: thread and start_ns of each, with an index of positions.
    """
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    op = trace.rank_frame("op", rank, ["op_id", "name_id", "thread", "start_ns", "dur_ns"])
    name, op_id = np.full(len(calls), "", dtype=object), np.full(len(calls), -1, dtype=np.int64)
    for thread, rows in calls.groupby("thread"):
        own = op[op["thread"] == thread].sort_values(
            ["start_ns", "dur_ns"], ascending=[True, False]
        )
        end_ns = (own["start_ns"] + own["dur_ns"]).to_numpy(np.int64)
        reached = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end_ns))[:-1]
        outer = own[(own["start_ns"].to_numpy(np.int64) >= reached)]
        if outer.empty:
            continue
        at_ns = rows["start_ns"].to_numpy(np.int64)
        place = np.searchsorted(outer["start_ns"].to_numpy(np.int64), at_ns, side="right") - 1
        found = outer.iloc[np.maximum(place, 0)]
        inside = (place >= 0) & (at_ns < (found["start_ns"] + found["dur_ns"]).to_numpy(np.int64))
        at = rows.index.to_numpy()[inside]
        name[at] = found["name_id"].map(names).to_numpy(object)[inside]
        op_id[at] = found["op_id"].to_numpy(np.int64)[inside]
    return name, op_id


def python_around(trace: Trace, rank: int, thread: int, start_ns: int, dur_ns: int) -> str:
    """Return the recorded Python function around a call on its thread; empty if none.

    The innermost one of the user: not of torch or the interpreter, which stand around every call. Where
    there is none, the innermost with a line; else the built-in function, by its name.
    """
    rows = trace.rank_frame("python_call", rank)
    end = rows["start_ns"] + rows["dur_ns"]
    around = (rows["start_ns"] <= start_ns) & (end >= start_ns + dur_ns)
    found = rows[(rows["thread"] == thread) & around].sort_values("dur_ns")
    names = trace.rank_frame("name", rank).set_index("name_id")["name"]
    return best_function([str(name) for name in names.reindex(found["name_id"]).dropna()])


def best_function(names: Sequence[str]) -> str:
    """Return which of nested Python functions says most to a user; empty if there are none.

    Args:
        names: As the profiler writes them, the innermost first.
    """
    with_line = [name for name in names if not name.startswith("<")]
    of_user = [name for name in with_line if is_of_user(name)]
    return next(iter([*of_user, *with_line, *map(_built_in, names)]), "")


def is_of_user(name: str) -> bool:
    """Return whether a Python function, as the profiler writes it, is not built in and not of torch."""
    return not name.startswith(_NOT_OF_USER)


def _built_in(name: str) -> str:
    """Return the name of a built-in function, without where its object lay in memory."""
    found = _BUILT_IN.fullmatch(name)
    if found is None:
        return name
    method, of = found["name"], found["type"]
    return method if of is None or of.startswith("pybind11_") else f"{of}.{method}"


_PAGEABLE = re.compile(r"\bPageable\b")
"""In the name of a copy from or to memory that is not pinned: its call blocks, although it is called asynchronous."""
_KEY = ["call", "operator", "phase"]


def host_waits(trace: Trace) -> pd.DataFrame:
    """Sum up the calls of all ranks that wait for their device.

    A call costs the time without any work launched from its begin to the next launch, or the
    next such call, but no more than it lasted: without it the host would have been earlier by that.

    Returns:
        One row a call, the outermost operator around it (empty if none) and its phase, most
        costly first: count, blocked_ns (in the call), starved_ns (what it costs; NaN where
        launches are not known), ranks.
    """
    parts = [
        _of_rank(trace, rank) for rank in ranks_to_look_at(trace, "kernel", "runtime_call", "op")
    ]
    sums = (
        pd.concat(parts)
        .groupby(_KEY, as_index=False)
        .agg(
            count=("blocked_ns", "size"),
            blocked_ns=("blocked_ns", "sum"),
            starved_ns=("starved_ns", lambda part: part.sum(min_count=1)),
            ranks=("rank", "nunique"),
        )
    )
    return sums.sort_values(["starved_ns", "blocked_ns"], ascending=False, ignore_index=True)


def _of_rank(trace: Trace, rank: int) -> pd.DataFrame:
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    kernel = trace.rank_frame(
        "kernel",
        rank,
        ["step", "name_id", "category", "start_ns", "dur_ns", "correlation", "launch_ns"],
    )
    calls = _waiting_calls(trace, rank, kernel, names)
    operator, op_id = outermost_operator(trace, rank, calls)
    as_kernel = pd.DataFrame(
        {
            "start_ns": calls["start_ns"],
            "launch_ns": calls["start_ns"],
            "op_id": op_id,
            "correlation": calls["correlation"],
            "category": KernelCategory.SYNC.value,
        }
    )
    return pd.DataFrame(
        {
            "rank": rank,
            "call": calls["call"],
            "operator": operator,
            "phase": kernel_places(trace, rank, as_kernel)["phase"],
            "blocked_ns": calls["dur_ns"],
            "starved_ns": _starved_ns(trace, kernel, calls),
        }
    )


def _waiting_calls(
    trace: Trace, rank: int, kernel: pd.DataFrame, names: pd.Series[str]
) -> pd.DataFrame:
    """Return the calls that wait, in time order, and what they are called."""
    columns = ["name_id", "thread", "start_ns", "dur_ns", "correlation"]
    calls = trace.rank_frame("runtime_call", rank, columns)
    waits = names.index[names.str.contains(WAITING_CALL)]
    pageable = names.index[names.str.contains(_PAGEABLE)]
    copies = kernel.loc[kernel["name_id"].isin(pageable), "correlation"]
    is_copy = calls["correlation"].isin(copies[copies > 0])
    is_wait = calls["name_id"].isin(waits)
    chosen = calls[is_wait | is_copy].sort_values("start_ns", ignore_index=True)
    name = chosen["name_id"].map(names).astype(str)
    is_pageable = chosen["correlation"].isin(copies[copies > 0])
    return chosen.assign(call=name.where(~is_pageable, name + " (pageable memory)"))


def _starved_ns(trace: Trace, kernel: pd.DataFrame, calls: pd.DataFrame) -> FloatArray:
    """Return what each call costs; together they are no more than the device was starved."""
    starved = starved_intervals(trace, kernel[kernel["category"] != KernelCategory.SYNC.value])
    if starved is None:
        return np.full(len(calls), np.nan)
    begin = calls["start_ns"].to_numpy(np.int64)
    end = begin + calls["dur_ns"].to_numpy(np.int64)
    ends = np.append(starved[:, 1], 0)
    gap = np.searchsorted(starved[:, 0], end, side="right") - 1
    until = np.where((gap >= 0) & (end < ends[gap]), ends[gap], end)
    following = np.append(begin[1:], np.iinfo(np.int64).max)[: len(begin)]
    until = np.maximum(np.minimum(until, following), begin)
    cost: FloatArray = np.minimum(covered_length(starved, begin, until), end - begin) * 1.0
    return cost
