"""Where the device time of each rank went, by exact interval arithmetic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ...tables.intervals import total_length
from ...tables.trace import Trace
from ..mfu.devices import computing_devices, has_several_devices
from .coverage import device_extents

_COMPUTE = KernelCategory.COMPUTE.value
_COMMUNICATION = KernelCategory.COMMUNICATION.value
_UNKNOWN = KernelCategory.UNKNOWN.value
_NO_WORK = (KernelCategory.SYNC.value,)
"""Rows on the device's tracks during which the device may do nothing."""


def device_breakdown(trace: Trace, step: int | None = None) -> pd.DataFrame:
    """Split the span of each rank's device events, all of the capture or of one step.

    With C, M, U, A the instants at which compute, communication, what may be
    communication, any device work runs: computation = |C|, exposed communication =
    |C u M| - |C|, exposed unknown = |C u M u U| - |C u M|, exposed memcpy (and memset) =
    |A| - |C u M u U|, idle = span - |A|; these five add up to the span, which lasts from
    the first start to the last end, of each run of steps that were traced in depth if only some
    were. Communication = |M|. An activity of unknown kind that
    an operator launched counts as computation, as in the tools that these numbers are
    compared with; one that no operator launched is U. Synchronisation rows are no work.

    Returns:
        One row per rank of the capture, all integers: rank, span_ns, computation_ns,
        exposed_communication_ns, exposed_unknown_ns, exposed_memcpy_ns, idle_ns,
        communication_ns, unknown_ns (union of all activities of unknown kind),
        device_events, unlinked_events (without a launch in the file), unknown_events.
        A rank without device events has zeros.
    """
    rows = [_of_rank(trace, rank, step) for rank in trace.ranks]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(np.int64)


def breakdown_by_device(trace: Trace, step: int | None = None) -> pd.DataFrame:
    """Split the same span for each device of the ranks that compute on several.

    Returns:
        One row per such device: device, and the columns of ``device_breakdown``; no row where
        every rank computes on one.
    """
    rows = []
    for rank in trace.ranks:
        if not has_several_devices(trace, rank):
            continue
        kernel = _device_work(trace, rank, step)
        devices = computing_devices(kernel)
        span = _span(trace, kernel)
        if len(devices) > 1:
            of_device = ((one, kernel[kernel["device"] == one]) for one in devices)
            rows += [{"device": one} | _split(rank, own, span) for one, own in of_device]
    return pd.DataFrame(rows, columns=["device", *_COLUMNS]).astype(np.int64)


def _of_rank(trace: Trace, rank: int, step: int | None) -> dict[str, int]:
    kernel = _device_work(trace, rank, step)
    return _split(rank, kernel, _span(trace, kernel))


def _device_work(trace: Trace, rank: int, step: int | None) -> pd.DataFrame:
    kernel = trace.rank_frame("kernel", rank, _USED)
    is_wanted = ~kernel["category"].isin(_NO_WORK)
    if step is not None:
        is_wanted &= kernel["step"] == step
    return kernel[is_wanted]


def _span(trace: Trace, kernel: pd.DataFrame) -> int:
    return total_length(device_extents(trace, kernel[kernel["dur_ns"] > 0]))


def _split(rank: int, kernel: pd.DataFrame, span: int) -> dict[str, int]:
    """Return the row of some activities in a span, ns."""
    start = kernel["start_ns"].to_numpy(np.int64)
    intervals = np.column_stack([start, start + kernel["dur_ns"].to_numpy(np.int64)])
    category = kernel["category"].astype(str).to_numpy()
    is_communication, is_unknown = category == _COMMUNICATION, category == _UNKNOWN
    has_operator = kernel["op_id"].to_numpy() >= 0
    is_compute = (category == _COMPUTE) | (is_unknown & has_operator)

    def union_ns(is_in: npt.NDArray[np.bool_]) -> int:
        return total_length(intervals[is_in])

    computation = union_ns(is_compute)
    occupied = union_ns(is_compute | is_communication)
    with_unknown = union_ns(is_compute | is_communication | is_unknown)
    busy = total_length(intervals)
    return {
        "rank": rank,
        "span_ns": span,
        "computation_ns": computation,
        "exposed_communication_ns": occupied - computation,
        "exposed_unknown_ns": with_unknown - occupied,
        "exposed_memcpy_ns": busy - with_unknown,
        "idle_ns": span - busy,
        "communication_ns": union_ns(is_communication),
        "unknown_ns": union_ns(is_unknown),
        "device_events": len(kernel),
        "unlinked_events": int(kernel["launch_ns"].isna().sum()),
        "unknown_events": int(is_unknown.sum()),
    }


_USED = ("step", "device", "category", "start_ns", "dur_ns", "launch_ns", "op_id")
_COLUMNS = (
    "rank",
    "span_ns",
    "computation_ns",
    "exposed_communication_ns",
    "exposed_unknown_ns",
    "exposed_memcpy_ns",
    "idle_ns",
    "communication_ns",
    "unknown_ns",
    "device_events",
    "unlinked_events",
    "unknown_events",
)
