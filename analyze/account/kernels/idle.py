"""How long a device had nothing to do, and how much of it the host spent on launching."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import IntArray
from ...tables.intervals import pair, subtract, total_length, union
from ...tables.trace import Trace
from .coverage import device_extents
from .idle_causes import LAUNCHING, device_work, idle_causes


class DeviceIdle(NamedTuple):
    """Times of one rank, ns; None where launches are not known."""

    span_ns: int
    """From the first start to the last end of device work, see ``device_extents``."""
    busy_ns: int
    """Union of all device work; synchronisation rows are none."""
    starved_ns: int | None
    """Idle while nothing was launched that had not started: the host was late."""
    launch_bound_ns: int | None
    """The part of it in which the thread that launches was launching (``idle_causes``)."""

    @property
    def idle_ns(self) -> int:
        """Return the span less what is busy."""
        return self.span_ns - self.busy_ns


def device_idle(trace: Trace, rank: int, kernel: pd.DataFrame) -> DeviceIdle:
    """Split the idle time of one rank's device, all its streams together.

    With A the instants at which any device work runs, and Q those between the launch of
    an activity and its start: idle = span - A, starved = idle - Q. Launch-bound is the part of
    starved in which the CPU is launching: the thread that launches next is inside an operator or a
    call, and not in one that blocks it. ``idle_causes`` says what else the host did.

    HolisticTraceAnalysis asks the same of each stream alone and counts a gap as ``host_wait``
    from its beginning to the next start if that was launched after the gap began; here the
    gap ends with the launch, and a stream that waits while another works is not idle.

    Args:
        trace: The capture.
        rank: The rank.
        kernel: Its device activities: step, category, start_ns, dur_ns, launch_ns, correlation, op_id.
    """
    work = device_work(kernel)
    if work.empty:
        return DeviceIdle(0, 0, None, None)
    busy = _intervals(work)
    extents = device_extents(trace, work)
    starved = starved_intervals(trace, work)
    span_ns, busy_ns = total_length(extents), total_length(busy)
    if starved is None:
        return DeviceIdle(span_ns, busy_ns, None, None)
    causes = idle_causes(trace, rank, work, extents)
    is_host_recorded = bool(trace.row_count("op") or trace.row_count("runtime_call"))
    bound = causes.total_ns[LAUNCHING] if causes is not None and is_host_recorded else None
    return DeviceIdle(span_ns, busy_ns, total_length(starved), bound)


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


def _intervals(rows: pd.DataFrame) -> IntArray:
    start_ns = rows["start_ns"].to_numpy(np.int64)
    return union(pair(start_ns, start_ns + rows["dur_ns"].to_numpy(np.int64)))
