"""Which operators the devices worked for, and how near to the peak their arithmetic came.

A kernel counts for the operator that launched it, the innermost one. Operators keep their name
where libraries choose another kernel, and those that multiply matrices are distinguished by
their input shapes, of which each has a speed of its own.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd

from ...align.steps.windows import StepWindows
from ...formulas.operator_flops import element_type, multiplies
from ...tables.arrays import IntArray
from ...tables.intervals import covered_lengths
from ...tables.trace import Trace, ranks_to_look_at
from ...wording.limits import Limit
from ...wording.message import message
from ..mfu.utilization import device_peak

_KEY = ["operator", "shapes"]
_SUMS = ["calls", "kernels", "total_ns", "covered_ns", "flops", "counted_ns"]
_OF_PEAK = ("bf16", "f16")
"""Element types that the peaks of data sheets hold for."""


class OperatorReport(msgspec.Struct, frozen=True, kw_only=True):
    """Operators that launched device work."""

    operators: pd.DataFrame
    """One row an operator, and shapes if it multiplies matrices; longest first: operator (empty
    where none is known), shapes, calls, kernels, total_ns (of the kernels together), covered_ns (how long any of them ran, on each
    device), flops, flops_per_s,
    peak_frac, over_peak_ns (beyond what the arithmetic takes at peak); NaN is not known."""
    peak_flops: float | None
    peak_source: str
    limits: tuple[Limit, ...]


def operator_report(trace: Trace) -> OperatorReport:
    """Sum up the device work of all ranks by the operator that launched it."""
    sums = operator_sums(trace)
    peak, source = device_peak(trace)
    seconds = sums["counted_ns"].where(sums["counted_ns"] > 0) * 1e-9
    speed = sums["flops"].where(sums["flops"] > 0) / seconds
    of_peak = speed / (np.nan if peak is None else peak)
    of_peak = of_peak.where(sums["shapes"].map(element_type).isin(_OF_PEAK))
    table = sums.assign(
        flops_per_s=speed,
        peak_frac=of_peak,
        over_peak_ns=sums["counted_ns"] * (1.0 - of_peak),
    )
    return OperatorReport(
        operators=table.sort_values(["total_ns", *_KEY], ascending=[False, True, True]),
        peak_flops=peak,
        peak_source=source,
        limits=tuple(_limits(table, peak)),
    )


def operator_sums(trace: Trace, windows: StepWindows | None = None) -> pd.DataFrame:
    """Return operator, shapes, calls, kernels, total_ns, covered_ns, flops and counted_ns of all ranks.

    ``counted_ns`` is the part of the total whose arithmetic is in ``flops``.

    Args:
        trace: The capture.
        windows: The steps to which it is restricted.
    """
    parts = [_of_rank(trace, rank, windows) for rank in ranks_to_look_at(trace, "kernel", "op")]
    return pd.concat(parts).groupby(_KEY, as_index=False)[_SUMS].sum()


def _of_rank(trace: Trace, rank: int, windows: StepWindows | None) -> pd.DataFrame:
    kernel = trace.rank_frame(
        "kernel", rank, ["rank", "step", "device", "category", "start_ns", "dur_ns", "op_id"]
    )
    kernel = kernel[kernel["category"] != "sync"]
    if windows is not None:
        kernel = windows.select(kernel)
    calls = kernel.groupby("op_id").agg(kernels=("dur_ns", "size"), total_ns=("dur_ns", "sum"))
    op = trace.rank_frame("op", rank, ["op_id", "name_id", "shapes", "flops"])
    op = op[op["op_id"].isin(calls.index)].drop_duplicates("op_id")
    rows = calls.join(op.set_index("op_id"))
    names = trace.rank_frame("name", rank).set_index("name_id")["name"]
    rows["operator"] = rows["name_id"].map(names).fillna("").astype(str)
    is_product = rows["operator"].map(
        {name: multiplies(name) for name in rows["operator"].unique()}
    )
    rows["shapes"] = rows["shapes"].where(is_product.astype(bool)).fillna("").astype(str)
    rows["counted_ns"] = rows["total_ns"].where(rows["flops"].notna(), 0)
    is_call = rows["operator"] != ""
    rows = rows.assign(calls=is_call.astype(np.int64), flops=rows["flops"].fillna(0.0))
    keys = rows.groupby(_KEY)
    of_kernel = keys.ngroup().reindex(kernel["op_id"]).to_numpy().astype(np.int64)
    sums = keys.sum(numeric_only=True)
    covered = _covered(kernel, of_kernel, len(sums))
    return sums.assign(covered_ns=covered).reset_index()[[*_KEY, *_SUMS]]


def _covered(kernel: pd.DataFrame, owner: IntArray, count: int) -> IntArray:
    """Return how long any kernel of each owner ran, on each device, ns."""
    device, devices = pd.factorize(kernel["device"])
    start = kernel["start_ns"].to_numpy(np.int64)
    end = start + kernel["dur_ns"].to_numpy(np.int64)
    covered = covered_lengths(owner * len(devices) + device, start, end, count * len(devices))
    return np.asarray(covered.reshape(count, len(devices)).sum(axis=1), dtype=np.int64)


def _limits(table: pd.DataFrame, peak: float | None) -> list[Limit]:
    product = table[table["operator"].map(multiplies).astype(bool)]
    if product.empty:
        return []
    limits: list[Limit] = []
    uncounted_ns = float((product["total_ns"] - product["counted_ns"]).sum())
    if uncounted_ns > 0:
        if (product["shapes"] == "").all():
            limits.append(message("unknown.products_without_shapes", time_ns=uncounted_ns))
        else:
            limits.append(message("unknown.products_of_other_inputs", time_ns=uncounted_ns))
    if peak is None and product["flops"].any():
        limits.append(message("unknown.peak_of_products"))
    elif (product["peak_frac"].isna() & (product["flops"] > 0)).any():
        limits.append(message("scope.peak_of_16_bit"))
    return limits
