"""Compute time split into what the model needs and what makes it slower than that.

Per rank and step, as shares of the step time::

    compute = useful + recompute + contention + kernel inefficiency

* useful: model FLOPs at peak, which is MFU;
* recompute: activations computed again, the difference between HFU and MFU;
* contention: what kernels take longer while communication runs beside them, against the
  median of kernels of the same name and input shapes that run alone;
* kernel inefficiency: the rest, signed: a wrong peak or FLOPs convention shows here.

A clock below the rated one and kernels that are bound by memory bandwidth are in the
rest, unless the capture tells them apart; ``limits`` says so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from .intervals import IntArray, covered_length, pair, union
from .kernel_coverage import common_kernel_steps, has_kernels
from .ledger import COMPUTE_CLASSES, UNSEPARATED, Ledger
from .results import Utilization
from .steps import StepWindows
from .trace import Trace

MIN_ALONE = 3
"""Least number of kernels alone whose median others are compared with."""
MIN_BESIDE = 0.5
"""Share of its duration from which a kernel runs beside communication."""
_KERNEL_COLUMNS = ("rank", "step", "name_id", "category", "start_ns", "dur_ns", "op_id")


class Refinement(NamedTuple):
    """Compute classes as shares of the step time, averaged over ranks, and what is not told."""

    frac: dict[str, float]
    """useful, recompute, contention, kernel_inefficiency; empty where MFU is not known."""
    limits: tuple[str, ...]


def refine_compute(
    trace: Trace, windows: StepWindows, ledger: Ledger, use: Utilization
) -> Refinement:
    """Return the parts of compute (the optimizer excluded), which sum to it."""
    if use.mfu is None:
        return Refinement({}, ())
    by_step = ledger.by_step
    total = float(by_step["step_ns"].sum())
    if by_step[UNSEPARATED].any():
        return Refinement({}, ("MFU is known, but not what the rest of the spans is",))
    compute = sum(float(by_step[name].sum()) for name in COMPUTE_CLASSES if name != "optimizer")
    recompute = float(by_step["recompute"].sum()) / total
    contention, told = _contention_frac(trace, windows, ledger)
    parts = {"useful": use.mfu}
    if recompute:
        parts["recompute"] = recompute
    if told:
        parts["contention"] = contention
    parts["kernel_inefficiency"] = compute / total - sum(parts.values())
    unseparated = ["a clock below the rated one", "kernels bound by memory bandwidth"]
    if not told:
        unseparated.insert(0, "contention with communication")
    limit = "this capture does not tell apart " + ", ".join(unseparated)
    limits = [f"{limit}: they are in the kernel inefficiency"]
    if told and trace.kernel_steps is not None:
        limits.append(
            "contention was measured in the steps that were traced in depth, and taken to be the "
            "same share of the others"
        )
    return Refinement(parts, tuple(limits))


def _contention_frac(trace: Trace, windows: StepWindows, ledger: Ledger) -> tuple[float, bool]:
    """Return the share of the step time that kernels lose beside communication.

    It is that of the steps with kernels.

    Returns:
        The share, and whether any kernel could be compared.
    """
    common = common_kernel_steps(trace, windows.ranks)
    lost_ns, told = _contention_ns(trace, windows, common)
    by_step = ledger.by_step
    traced = by_step[has_kernels(trace, by_step["step"], common)]
    return (lost_ns / float(traced["step_ns"].sum()), True) if told else (0.0, False)


def _contention_ns(
    trace: Trace, windows: StepWindows, common: IntArray | None
) -> tuple[float, bool]:
    """Return the time that kernels of the analysed steps lose beside communication.

    Returns:
        Nanoseconds, summed over ranks and steps, and whether any kernel could be compared.
    """
    lost, told = 0.0, False
    if not trace.row_count("kernel"):
        return lost, told
    for rank in windows.ranks.tolist():
        kernels = windows.select(trace.rank_frame("kernel", rank, _KERNEL_COLUMNS))
        if common is not None:
            kernels = kernels[kernels["step"].isin(common)]
        shapes = trace.rank_frame("op", rank, ("op_id", "shapes")).dropna(subset=["shapes"])
        if kernels.empty or shapes.empty:
            continue
        excess = _excess_beside(kernels.merge(shapes, on="op_id"), kernels)
        if excess is not None:
            lost, told = lost + excess, True
    return max(lost, 0.0), told


def _excess_beside(compute: pd.DataFrame, kernels: pd.DataFrame) -> float | None:
    """Return how much longer kernels take beside communication than alone; None if untold."""
    is_communication = kernels["category"] == KernelCategory.COMMUNICATION
    moving = kernels[is_communication]
    compute = compute[compute["category"] == KernelCategory.COMPUTE]
    if moving.empty or compute.empty:
        return None
    busy = union(pair(moving["start_ns"], moving["start_ns"] + moving["dur_ns"]))
    end = compute["start_ns"] + compute["dur_ns"]
    beside = covered_length(busy, compute["start_ns"], end)
    duration = compute["dur_ns"].to_numpy(np.float64)
    is_beside = beside >= MIN_BESIDE * np.maximum(duration, 1)
    alone = compute["dur_ns"].where(beside == 0).groupby([compute["name_id"], compute["shapes"]])
    usual = alone.transform("median").where(alone.transform("count") >= MIN_ALONE)
    known = is_beside & usual.notna().to_numpy()
    if not known.any():
        return None
    return float((duration - usual.to_numpy())[known].sum())
