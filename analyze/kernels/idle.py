"""Why a device had nothing to do: nothing was launched yet, or what was launched waited."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ..arrays import IntArray
from ..capture.trace import Trace
from ..intervals import intersect, pair, subtract, total_length, union
from .coverage import device_extents

WAITING_CALL = re.compile(
    r"synchroni[sz]e|\b(?:cu|cuda|hip)Memcpy(?:HtoD|DtoH|WithStream)?(?:_v\d+)?(?:_ptds(?:_v\d+)?)?$",
    re.IGNORECASE,
)
"""Names of calls that return when the device is done; Nsight adds a version to them."""


class DeviceIdle(NamedTuple):
    """Times of one rank, ns; None where launches are not known."""

    span_ns: int
    """From the first start to the last end of device work, see ``device_extents``."""
    busy_ns: int
    """Union of all device work; synchronisation rows are none."""
    starved_ns: int | None
    """Idle while nothing was launched that had not started: the host was late."""
    launch_bound_ns: int | None
    """The part of it in which a thread of the host was at work in an operator or a call."""

    @property
    def idle_ns(self) -> int:
        """Return the span less what is busy."""
        return self.span_ns - self.busy_ns


def device_idle(trace: Trace, rank: int, kernel: pd.DataFrame) -> DeviceIdle:
    """Split the idle time of one rank's device, all its streams together.

    With A the instants at which any device work runs, and Q those between the launch of
    an activity and its start: idle = span - A, starved = idle - Q. Launch-bound is the part of
    starved in which the CPU is launching: a thread is inside an operator or a runtime
    call and not in a call that waits for the device. The rest of starved is time in
    which the host did something else, such as waiting for input.

    HolisticTraceAnalysis asks the same of each stream alone and counts a gap as ``host_wait``
    from its beginning to the next start if that was launched after the gap began; here the
    gap ends with the launch, and a stream that waits while another works is not idle.

    Args:
        trace: The capture.
        rank: The rank.
        kernel: Its device activities: step, category, start_ns, dur_ns, launch_ns.
    """
    work = kernel[kernel["category"] != KernelCategory.SYNC.value]
    if work.empty:
        return DeviceIdle(0, 0, None, None)
    busy = _intervals(work)
    extents = device_extents(trace, work)
    starved = starved_intervals(trace, work)
    if starved is None:
        return DeviceIdle(total_length(extents), total_length(busy), None, None)
    working = _working(trace, rank)
    return DeviceIdle(
        span_ns=total_length(extents),
        busy_ns=total_length(busy),
        starved_ns=total_length(starved),
        launch_bound_ns=total_length(intersect(starved, working)) if len(working) else None,
    )


def starved_intervals(trace: Trace, work: pd.DataFrame) -> IntArray | None:
    """Return when the device of a rank had nothing to do; None where no launch is known.

    Args:
        trace: The capture.
        work: Device work of the rank: step, start_ns, dur_ns, launch_ns.
    """
    launched = work[work["launch_ns"].notna()]
    if launched.empty:
        return None
    queued = pair(launched["launch_ns"].to_numpy(np.int64), launched["start_ns"].to_numpy(np.int64))
    return subtract(subtract(device_extents(trace, work), _intervals(work)), queued)


def _working(trace: Trace, rank: int) -> IntArray:
    """Return when any thread of the host was inside an operator or call that does not wait."""
    names = trace.rank_frame("name", rank)
    waits = names.loc[names["name"].str.contains(WAITING_CALL), "name_id"]
    columns = ["thread", "name_id", "start_ns", "dur_ns"]
    calls = trace.rank_frame("runtime_call", rank, columns)
    is_wait = calls["name_id"].isin(waits)
    inside = pd.concat([trace.rank_frame("op", rank, columns), calls[~is_wait]])
    waiting = calls[is_wait]
    by_thread = [
        subtract(_intervals(rows), _intervals(waiting[waiting["thread"] == thread]))
        for thread, rows in inside.groupby("thread")
    ]
    return union(np.concatenate([np.empty((0, 2), np.int64), *by_thread]))


def _intervals(rows: pd.DataFrame) -> IntArray:
    start_ns = rows["start_ns"].to_numpy(np.int64)
    return union(pair(start_ns, start_ns + rows["dur_ns"].to_numpy(np.int64)))
