"""The operator around a call, on the thread that made it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...tables.arrays import IntArray
from ...tables.trace import Trace


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
    """Return the innermost recorded Python function around a call on its thread; empty if none."""
    rows = trace.rank_frame("python_call", rank)
    end = rows["start_ns"] + rows["dur_ns"]
    around = (rows["start_ns"] <= start_ns) & (end >= start_ns + dur_ns)
    found = rows[(rows["thread"] == thread) & around].sort_values("dur_ns")
    if found.empty:
        return ""
    names = trace.rank_frame("name", rank).set_index("name_id")["name"]
    return str(names[found["name_id"].iloc[0]])
