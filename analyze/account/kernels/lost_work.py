"""Idle time of a device in which work was launched that the file lacks: a profiler lost it.

::

    launched   a  b  c        d
    recorded      a |      | d      b and c ran here, or nothing did

Such time is not known to be idle, and what the host did meanwhile is no cause of it.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from ...tables.arrays import IntArray
from ...tables.intervals import pair
from ...tables.trace import Trace

_LAUNCH = re.compile(r"(?:cuda|cu|hip)\w*Launch(?:Cooperative)?Kernel", re.IGNORECASE)
"""Calls of which each starts one kernel. One that sets no byte of memory starts nothing."""
_CAPTURE = re.compile(r"StreamBeginCapture", re.IGNORECASE)
_LEAST, _LEAST_FRAC = 5, 0.01
"""Launches without a kernel, and their share, that are no accident."""
_NONE: IntArray = np.empty(0, dtype=np.int64)


def lost_launches(trace: Trace, rank: int, work: pd.DataFrame) -> IntArray:
    """Return when kernels were launched that are not recorded, between others that are, ns, rising.

    None where a graph is captured: launches into it start nothing.

    Args:
        trace: The capture.
        rank: The rank.
        work: Its device work: correlation.
    """
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    if names.str.contains(_CAPTURE).any():
        return _NONE
    calls = trace.rank_frame("runtime_call", rank, ["name_id", "start_ns", "correlation"])
    launching = calls[calls["name_id"].isin(names.index[names.str.match(_LAUNCH)])]
    begin = launching["start_ns"].to_numpy(np.int64)
    is_done = launching["correlation"].isin(work["correlation"]).to_numpy(bool)
    if not is_done.any():
        return _NONE
    first, last = begin[is_done].min(), begin[is_done].max()
    lost = np.sort(begin[~is_done & (begin > first) & (begin < last)])
    return lost if len(lost) >= max(_LEAST, _LEAST_FRAC * len(begin)) else _NONE


def time_of_lost_work(gaps: IntArray, work: pd.DataFrame, lost: IntArray) -> IntArray:
    """Return the part of each gap in which lost work may have run, a merged set, ns.

    It was launched after all work that began before the gap and before the work that ends the gap.

    Args:
        gaps: Idle time, a merged set, ns.
        work: Device work with known launches: start_ns, launch_ns.
        lost: When lost work was launched, ns, rising.
    """
    rows = work[work["launch_ns"].notna()].sort_values("start_ns", kind="stable")
    if not len(lost) or rows.empty:
        return np.empty((0, 2), dtype=np.int64)
    start, launch = (rows[name].to_numpy(np.int64) for name in ("start_ns", "launch_ns"))
    after = np.searchsorted(start, gaps[:, 1], side="left")
    inside = gaps[(after > 0) & (after < len(start))]
    after = after[(after > 0) & (after < len(start))]
    earlier = np.maximum.accumulate(launch)[after - 1]
    at = np.searchsorted(lost, earlier, side="right")
    since = lost[np.minimum(at, len(lost) - 1)]
    is_lost = (at < len(lost)) & (since < launch[after])
    begin = np.maximum(inside[:, 0], since)
    chosen = is_lost & (begin < inside[:, 1])
    return pair(begin[chosen], inside[chosen, 1])
