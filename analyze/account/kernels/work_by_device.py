"""The idle causes of each device of a process: what one waits for is decided by its own launches.

A moment is idle when no device of the rank works. Each device has a cause for it, and the rank
has the mean of them::

    host        cudaFree####launch of device 0        launch of device 1
    device 0    idle: allocator                ####                     cause: allocator
    device 1    idle: allocator, then nothing launched                  causes: half and half
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...tables.arrays import IntArray
from ...tables.intervals import union
from ...tables.trace import Trace
from ..mfu.devices import computing_devices, has_several_devices
from .idle import CAUSES, IdleCauses, idle_causes

ONLY = -1
"""Stands for the device of a rank that computes on one, or whose devices are not known."""
_OF_BLOCKER = ["cause", "name", "is_call", "thread", "start_ns", "dur_ns"]


def work_by_device(trace: Trace, rank: int, work: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """Return the work of each device that a rank computes on, all of it as one where it is a single one.

    Args:
        trace: The capture.
        rank: The rank.
        work: Its device work: device, category, dur_ns and what else is wanted.
    """
    devices = computing_devices(work) if has_several_devices(trace, rank) else []
    if len(devices) < 2:
        return {ONLY: work}
    return {device: work[work["device"] == device] for device in devices}


def causes_by_device(
    trace: Trace, rank: int, works: dict[int, pd.DataFrame], windows: IntArray
) -> dict[int, IdleCauses]:
    """Return why each device idled in a merged set of times; those without a known launch are left out."""
    found = {device: idle_causes(trace, rank, own, windows) for device, own in works.items()}
    return {device: causes for device, causes in found.items() if causes is not None}


def mean_causes(found: list[IdleCauses]) -> IdleCauses:
    """Return the causes of a rank: the mean of its devices, whose idle time is the same.

    Args:
        found: Those of each device, at least one.
    """
    if len(found) == 1:
        return found[0]
    total = {
        cause: round(sum(one.total_ns[cause] for one in found) / len(found)) for cause in CAUSES
    }
    every = pd.concat([one.blockers for one in found], ignore_index=True)
    rows = every.groupby(_OF_BLOCKER, sort=False)[["idle_ns"]].sum().reset_index()
    mean = (rows["idle_ns"] / len(found)).round().astype(np.int64)
    return IdleCauses(
        total_ns=total,
        blockers=rows.assign(idle_ns=mean)[mean > 0].reset_index(drop=True),
        waits=union(np.concatenate([one.waits for one in found])),
        nothing=union(np.concatenate([one.nothing for one in found])),
        threads=np.unique(np.concatenate([one.threads for one in found])),
    )
