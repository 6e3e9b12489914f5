"""Calls of the host that wait for the device, where they are made, and what they cost.

The host cannot launch while it waits, so the device has nothing to do from the end of
what was launched until the next launch.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ...tables.arrays import FloatArray
from ...tables.intervals import covered_length
from ...tables.trace import Trace, ranks_to_look_at
from .call_names import WAITING_CALL
from .idle import starved_intervals
from .outermost import outermost_operator
from .places import kernel_places

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
