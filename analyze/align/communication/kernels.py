"""The mesh axis of communication kernels of a run whose communication the probe recorded.

Kernels of a deep trace and the operations that the probe recorded have no number in common.
A backend launches the kernel of an operation inside the call that the probe sees, so the kernel
is that of the operation issued last before its launch. This is taken as certain only where
no other communication kernel was launched after the same issue, and where everything
issued since the communication kernel before it lies along one axis: operations that were
coalesced into one kernel do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import Axis

from ...tables.trace import Trace

_OTHER = Axis.OTHER.value


def axis_by_launch(trace: Trace, rank: int, launch_ns: pd.Series[int]) -> npt.NDArray[np.object_]:
    """Return the axis of each communication kernel of a rank, ``other`` where it is not certain.

    Args:
        trace: The capture.
        rank: The rank.
        launch_ns: When the host launched each kernel, null where that is not known.
    """
    axis = np.full(len(launch_ns), _OTHER, dtype=object)
    issue_ns, issued_axis = _issued(trace, rank)
    known = np.flatnonzero(launch_ns.notna().to_numpy(bool))
    if not len(issue_ns) or not len(known):
        return axis
    times = launch_ns.to_numpy()[known].astype(np.int64)
    known, times = known[np.argsort(times, kind="stable")], np.sort(times, kind="stable")
    last = np.searchsorted(issue_ns, times, side="right") - 1
    first = np.append(-1, last[:-1]) + 1
    has_own = (last >= first) & (np.append(last[1:], len(issue_ns)) > last)
    changes = np.concatenate([[0], np.cumsum(issued_axis[1:] != issued_axis[:-1])])
    is_one_axis = changes[np.maximum(last, 0)] == changes[np.clip(first, 0, len(changes) - 1)]
    certain = has_own & is_one_axis
    axis[known[certain]] = issued_axis[last[certain]]
    return axis


def _issued(trace: Trace, rank: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.object_]]:
    """Return when the operations of a rank were issued, in order, and their axes."""
    rows = pd.concat(
        trace.rank_frame(name, rank, ["issue_ns", "axis", "event_id"])
        .drop_duplicates("event_id", keep="last")
        .astype({"axis": str})
        for name in ("collective", "p2p")
    ).sort_values("issue_ns", kind="stable")
    return rows["issue_ns"].to_numpy(np.int64), rows["axis"].to_numpy(object)
