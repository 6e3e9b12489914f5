"""How many devices a rank computes on: MFU is a share of the peak of all of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.terms import KernelCategory

from ...tables.trace import Trace

LEAST_WORK = 0.01
"""Share of the compute time of the busiest device of a rank from which another one counts.

A process that touches the device of another rank does not compute there.
"""


def devices_per_rank(trace: Trace) -> float:
    """Return the mean number of devices that a captured rank computes on.

    1 where no kernels tell, as a rank has one device then by all that is known.
    """
    if not trace.row_count("kernel"):
        return 1.0
    counts = [count for rank in trace.ranks if (count := _of_rank(trace, rank))]
    return float(np.mean(counts)) if counts else 1.0


def _of_rank(trace: Trace, rank: int) -> int:
    """Return how many devices a rank computes on; 0 where it has no kernels that compute."""
    kernel = trace.rank_table("kernel", rank, ["device", "category", "dur_ns"])
    if len(pc.unique(kernel["device"])) < 2:
        return 1 if kernel.num_rows else 0
    computes = pc.equal(kernel["category"].cast(pa.string()), KernelCategory.COMPUTE.value)
    own = kernel.filter(pc.and_(computes, pc.greater_equal(kernel["device"], 0)))
    worked = own.group_by("device").aggregate([("dur_ns", "sum")])["dur_ns_sum"].to_numpy()
    return int((worked >= LEAST_WORK * worked.max(initial=0)).sum())


def computing_devices(kernel: pd.DataFrame) -> list[int]:
    """Return the numbers of the devices that compute, of activities with device, category, dur_ns."""
    own = kernel[(kernel["category"] == KernelCategory.COMPUTE.value) & (kernel["device"] >= 0)]
    worked = own.groupby("device")["dur_ns"].sum()
    return [int(device) for device in worked.index[worked >= LEAST_WORK * worked.max()]]


def has_several_devices(trace: Trace, rank: int) -> bool:
    """Return whether anything of more than one device was recorded on a rank: a cheap look at one column."""
    return len(pc.unique(trace.rank_table("kernel", rank, ["device"])["device"])) > 1
