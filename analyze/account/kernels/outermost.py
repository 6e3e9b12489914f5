"""The operator, or the Python function, around a call on the thread that made it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...tables.arrays import IntArray
from ...tables.trace import Trace

_BUILT_IN = re.compile(
    r"<built-in (?:method|function) (?P<name>\S*)(?: of (?P<type>\S+) object at 0x[0-9a-f]+)?>"
)


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
    of_user = [name for name in with_line if not name.startswith(("torch/", "nn.Module: "))]
    return next(iter([*of_user, *with_line, *map(_built_in, names)]), "")


def _built_in(name: str) -> str:
    """Return the name of a built-in function, without where its object lay in memory."""
    found = _BUILT_IN.fullmatch(name)
    if found is None:
        return name
    method, of = found["name"], found["type"]
    return method if of is None or of.startswith("pybind11_") else f"{of}.{method}"
