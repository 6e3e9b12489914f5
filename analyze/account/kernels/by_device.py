"""An account of each device of a process that computes on several: all other accounts take them as one.

A moment counts as busy there when any of them works::

    device 0    ####....####....        50 % busy, 50 % idle beside none
    device 1    ##......##......        25 % busy, 25 % idle beside device 0
    together    ####....####....        50 % busy
"""

from __future__ import annotations

import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.intervals import intersect, pair, total_length, union
from ...tables.results import DeviceUse
from ...tables.trace import Trace
from ..mfu.devices import computing_devices, has_several_devices
from .coverage import common_kernel_steps
from .idle import idle_causes

_COMPUTE = KernelCategory.COMPUTE.value
_COMMUNICATION = KernelCategory.COMMUNICATION.value
_UNKNOWN = KernelCategory.UNKNOWN.value
_SYNC = KernelCategory.SYNC.value
_USED = ["device", "category", "start_ns", "dur_ns", "op_id", "launch_ns", "correlation"]


def use_by_device(trace: Trace, windows: StepWindows) -> tuple[DeviceUse, ...]:
    """Return the devices of each rank that computed on several, the busiest of a rank first."""
    if not trace.row_count("kernel"):
        return ()
    common = common_kernel_steps(trace, windows.ranks)
    found: list[DeviceUse] = []
    for rank in windows.ranks.tolist():
        if has_several_devices(trace, rank):
            whole = union(windows.intervals_of(rank, common))
            found += _of_rank(trace, int(rank), whole)
    return tuple(found)


def _of_rank(trace: Trace, rank: int, whole: IntArray) -> list[DeviceUse]:
    """Return the devices of one rank in a merged set of times."""
    kernel = trace.rank_frame("kernel", rank, _USED)
    work = kernel[kernel["category"] != _SYNC]
    devices = computing_devices(work)
    whole_ns = total_length(whole)
    if len(devices) < 2 or not whole_ns:
        return []

    def share(rows: pd.DataFrame) -> float:
        busy = union(pair(rows["start_ns"], rows["start_ns"] + rows["dur_ns"]))
        return total_length(intersect(busy, whole)) / whole_ns

    any_busy = share(work[work["device"].isin(devices)])
    uses = []
    for device in devices:
        own = work[work["device"] == device]
        causes = idle_causes(trace, rank, own, whole)
        # What an operator launched is taken for compute, as in the breakdown of device time.
        of_operator = (own["category"] == _UNKNOWN) & (own["op_id"] >= 0)
        is_compute = (own["category"] == _COMPUTE) | of_operator
        compute, busy = share(own[is_compute]), share(own)
        both = share(own[is_compute | (own["category"] == _COMMUNICATION)])
        use = DeviceUse(
            rank=rank,
            device=device,
            compute_frac=compute,
            communication_frac=both - compute,
            other_frac=busy - both,
            beside_frac=any_busy - busy,
            idle_frac=1.0 - any_busy,
            idle_causes_frac=None
            if causes is None
            else {cause: ns / whole_ns for cause, ns in causes.total_ns.items()},
        )
        uses.append(use)
    return sorted(uses, key=lambda use: -use.busy_frac)
