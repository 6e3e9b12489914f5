"""What each device did of a process that computes on several: all other accounts take them as one.

A moment counts as busy there when any of them works::

    device 0    ####....####....        50 %
    device 1    ##......##......        25 %
    together    ####....####....        50 %
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from meshscope.probe.schema.terms import KernelCategory

from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.intervals import intersect, pair, total_length, union
from ...tables.trace import Trace
from ..mfu.devices import LEAST_WORK

_COMPUTE = KernelCategory.COMPUTE.value
_COMMUNICATION = KernelCategory.COMMUNICATION.value
_SYNC = KernelCategory.SYNC.value
_USED = ["step", "device", "category", "start_ns", "dur_ns"]


class DeviceUse(NamedTuple):
    """Shares of the analysed steps of one device; they overlap, but for ``idle_frac``."""

    rank: int
    device: int
    compute_frac: float
    communication_frac: float
    idle_frac: float
    """No work of any kind."""


def use_by_device(trace: Trace, windows: StepWindows) -> list[DeviceUse]:
    """Return the devices of each rank that computed on several, the busiest of a rank first."""
    found: list[DeviceUse] = []
    if not trace.row_count("kernel"):
        return found
    for rank in windows.ranks.tolist():
        devices = pc.unique(trace.rank_table("kernel", rank, ["device"])["device"])
        if len(devices) > 1:
            found += _of_rank(trace, windows, int(rank))
    return found


def _of_rank(trace: Trace, windows: StepWindows, rank: int) -> list[DeviceUse]:
    kernel = trace.rank_frame("kernel", rank, _USED)
    kernel = kernel[(kernel["category"] != _SYNC) & (kernel["device"] >= 0)]
    steps = np.unique(kernel["step"].to_numpy(np.int64)) if windows.has_marks else None
    inside = windows.intervals_of(rank, steps)
    whole_ns = total_length(inside)
    if not whole_ns:
        return []

    def share(rows: pd.DataFrame) -> float:
        busy: IntArray = union(pair(rows["start_ns"], rows["start_ns"] + rows["dur_ns"]))
        return total_length(intersect(busy, inside)) / whole_ns

    uses = [
        DeviceUse(
            rank=rank,
            device=int(str(device)),
            compute_frac=share(own[own["category"] == _COMPUTE]),
            communication_frac=share(own[own["category"] == _COMMUNICATION]),
            idle_frac=1.0 - share(own),
        )
        for device, own in kernel.groupby("device")
    ]
    least = LEAST_WORK * max((one.compute_frac for one in uses), default=0.0)
    uses = [one for one in uses if one.compute_frac > 0.0 and one.compute_frac >= least]
    return sorted(uses, key=lambda one: one.idle_frac) if len(uses) > 1 else []
