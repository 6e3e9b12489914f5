"""Where the device time of each rank went, by exact interval arithmetic."""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from .intervals import union_by_group
from .trace import Trace

_COMPUTE = (KernelCategory.COMPUTE.value, KernelCategory.UNKNOWN.value)
_COMMUNICATION = (KernelCategory.COMMUNICATION.value,)
_NO_WORK = (KernelCategory.SYNC.value,)
"""Rows on the device's tracks during which the device may do nothing."""


def device_breakdown(trace: Trace, step: int | None = None) -> pd.DataFrame:
    """Split the span of each rank's device events, all of the capture or of one step.

    With C, M, A the instants at which compute, communication, any device work runs:
    computation = |C|, exposed communication = |C u M| - |C|, exposed memcpy (and
    memset) = |A| - |C u M|, idle = span - |A|; these four add up to the span, which
    lasts from the first start to the last end. Communication = |M|. A device
    activity of unknown kind counts as computation, as in the tools that these
    numbers are compared with, and is also given alone. Synchronisation rows are no work.

    Returns:
        One row per rank of the capture, all integers: rank, span_ns, computation_ns,
        exposed_communication_ns, exposed_memcpy_ns, idle_ns, communication_ns,
        unknown_ns (union of the activities of unknown kind), device_events,
        unlinked_events (without a launch in the file). A rank without device
        events has zeros.
    """
    kernel = trace.frame("kernel")
    is_wanted = ~kernel["category"].isin(_NO_WORK)
    if step is not None:
        is_wanted &= kernel["step"] == step
    kernel = kernel.loc[is_wanted, ["rank", "category", "start_ns", "dur_ns", "launch_ns"]]
    end_ns = kernel["start_ns"] + kernel["dur_ns"]
    is_compute = kernel["category"].isin(_COMPUTE)
    is_communication = kernel["category"].isin(_COMMUNICATION)
    by_rank = kernel.groupby("rank")
    ranks = pd.Index(trace.ranks, name="rank")

    def union_ns(is_in: pd.Series[bool]) -> pd.Series[int]:
        rows = kernel[is_in]
        merged = union_by_group(rows["rank"], rows["start_ns"], end_ns[is_in])
        length = pd.Series(merged.end - merged.start, dtype=np.int64)
        return length.groupby(merged.group).sum().reindex(ranks, fill_value=0)

    columns = {
        "span_ns": end_ns.groupby(kernel["rank"]).max() - by_rank["start_ns"].min(),
        "computation_ns": union_ns(is_compute),
        "communication_ns": union_ns(is_communication),
        "unknown_ns": union_ns(kernel["category"] == KernelCategory.UNKNOWN.value),
        "device_events": by_rank.size(),
        "unlinked_events": kernel["launch_ns"].isna().groupby(kernel["rank"]).sum(),
    }
    table = pd.DataFrame({k: v.reindex(ranks, fill_value=0) for k, v in columns.items()})
    occupied = union_ns(is_compute | is_communication)
    busy = union_ns(pd.Series(data=True, index=kernel.index))
    table["exposed_communication_ns"] = occupied - table["computation_ns"]
    table["exposed_memcpy_ns"] = busy - occupied
    table["idle_ns"] = table["span_ns"] - busy
    return table.astype(np.int64).reset_index()[list(_COLUMNS)]


_COLUMNS = (
    "rank",
    "span_ns",
    "computation_ns",
    "exposed_communication_ns",
    "exposed_memcpy_ns",
    "idle_ns",
    "communication_ns",
    "unknown_ns",
    "device_events",
    "unlinked_events",
)
