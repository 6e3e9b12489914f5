"""Compute time split into what the model needs and what makes it slower than that.

Per rank and step, as shares of the step time::

    compute = useful + recompute + clock + memory bound + contention + kernel inefficiency

* useful: model FLOPs at peak, which is MFU;
* recompute: activations computed again, the difference between HFU and MFU;
* clock: arithmetic takes as many cycles at any clock, so of compute at the clock f the part
  ``1 - f / f_full`` is lost; of compute that memory bandwidth bounds, nothing;
* memory bound: what compute takes longer than its arithmetic while memory bandwidth bounds it
  (the roofline of Williams et al., CACM 52(4), 2009, with the shares of both peaks as measured);
* contention: what kernels take longer while communication runs beside them, against the
  median of kernels of the same name and input shapes that run alone;
* kernel inefficiency: the rest. Losses that overlap are scaled, so that it is not negative; where the
  useful part alone is longer than compute, an input is wrong, and nothing is split.

Clock and memory are known from samples of the devices. What is not known is not zero: its time stays
in the class that it was in, and ``limits`` says why. The optimizer is not refined: it streams
through memory, at any clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ..align.steps.windows import StepWindows
from ..tables.arrays import IntArray
from ..tables.classes import COMPUTE_CLASSES, REFINED, UNSEPARATED
from ..tables.intervals import covered_length, pair, union
from ..tables.results import Utilization
from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import Text, message
from .devices.steps import MEMORY_BOUND, DeviceSteps
from .kernels.coverage import common_kernel_steps, has_kernels

SLOWED = tuple(name for name in COMPUTE_CLASSES if name != "optimizer")
"""Classes that are refined."""
MIN_ALONE = 3
"""Least number of kernels alone whose median others are compared with."""
MIN_BESIDE = 0.5
"""Share of its duration from which a kernel runs beside communication."""
_KERNEL_COLUMNS = ("rank", "step", "name_id", "category", "start_ns", "dur_ns", "op_id")


_MOST_NEGATIVE = 0.005
"""Share of the step by which rounded peaks and borders of spans make the rest negative."""


class Refinement(NamedTuple):
    """Compute classes as shares of the step time, averaged over ranks, and what is not known."""

    frac: dict[str, float]
    """useful, recompute, clock, memory_bound, contention, kernel_inefficiency, as far as they are
    known; empty where MFU is not."""
    limits: tuple[Limit, ...]


def refine_ledger(by_step: pd.DataFrame, devices: DeviceSteps) -> pd.DataFrame:
    """Return the ledger with ``clock`` and ``memory_bound`` taken out of the compute classes.

    The classes of a row sum to the same; where one of the two is not known it is NaN.

    Args:
        by_step: One row a rank and step, as the ledger has them.
        devices: Of the same rows.
    """
    # What hides communication cannot be split by what computing would take.
    measured = ~(by_step[UNSEPARATED] > 0).to_numpy()
    fractions = {
        name: np.where(measured, devices.frame[column], np.nan)
        for name, column in zip(REFINED, ("clock_lost_frac", "memory_lost_frac"), strict=True)
    }
    compute = by_step[list(SLOWED)].sum(axis=1).to_numpy()
    left = 1.0 - sum(np.nan_to_num(frac) for frac in fractions.values())
    table = by_step.assign(**{name: by_step[name].to_numpy() * left for name in SLOWED})
    place = list(table.columns).index(COMPUTE_CLASSES[-1]) + 1
    for name in reversed(REFINED):
        table.insert(place, name, compute * fractions[name])
    return table


def refine_compute(
    trace: Trace,
    windows: StepWindows,
    ledger: pd.DataFrame,
    use: Utilization,
    devices: DeviceSteps,
) -> Refinement:
    """Return the parts of compute (the optimizer excluded), which sum to it.

    Args:
        trace: The capture.
        windows: Its analysed steps.
        ledger: As ``refine_ledger`` returns it.
        use: MFU.
        devices: What the ledger was refined by.
    """
    measured = [name for name in REFINED if ledger[name].notna().any()]
    limits = tuple(_limits(ledger, devices))
    if use.mfu is None:
        whole = _not_measured([*measured, "contention"], devices, is_whole=True)
        return Refinement({}, (*whole, *limits))
    if use.devices_per_rank > 1:
        # What one device computes while another one idles is no inefficiency of a kernel.
        return Refinement({}, (message("unknown.parts_of_devices"), *limits))
    total = float(ledger["step_ns"].sum())
    if ledger[UNSEPARATED].any():
        return Refinement({}, (message("unknown.rest_of_spans"), *limits))
    compute = sum(float(ledger[name].sum()) for name in (*SLOWED, *REFINED))
    parts = {"useful": use.mfu}
    if recompute := float(ledger["recompute"].sum()):
        parts["recompute"] = recompute / total
    room = compute / total - sum(parts.values())
    if room < -_MOST_NEGATIVE and trace.kernel_steps is None:
        whole = _not_measured([*measured, "contention"], devices, is_whole=True)
        return Refinement({}, (message("doubt.less_than_peak", share=-room), *whole, *limits))
    lost = {name: float(ledger[name].sum()) / total for name in measured}
    contention, is_measured = _contention_frac(trace, windows, ledger)
    if is_measured:
        lost["contention"] = contention
        measured.append("contention")
    if (over := sum(lost.values())) > max(room, 0.0):
        lost = {name: frac * max(room, 0.0) / over for name, frac in lost.items()}
        limits = (*limits, message("assumed.overlap_scaled", parts=list(lost)))
    parts |= lost
    parts["kernel_inefficiency"] = compute / total - sum(parts.values())
    found = [*_not_measured(measured, devices, is_whole=False), *limits]
    if is_measured and trace.kernel_steps is not None:
        found.append(message("assumed.contention_of_traced"))
    return Refinement(parts, tuple(found))


def _not_measured(measured: list[str], devices: DeviceSteps, *, is_whole: bool) -> Iterator[Limit]:
    """Yield which parts of compute are not known, and why.

    Args:
        measured: The parts that are known.
        devices: Why clocks and memory are not.
        is_whole: Whether they count as compute, of which no part is known.
    """
    words = {
        "contention": message("scope.contention"),
        "clock": message("scope.low_clocks"),
        "memory_bound": message("scope.memory_bandwidth"),
    }
    missing = [words[name] for name in words if name not in measured]
    if missing and is_whole:
        yield message("scope.counted_as_compute", parts=missing)
    elif missing:
        yield message("scope.counted_as_inefficiency", parts=missing)
    reasons: list[tuple[Text, list[Text]]] = []
    for name, unknown in zip(REFINED, (devices.clock_unknown, devices.memory_unknown), strict=True):
        if name in measured:
            continue
        why = unknown or message("why.communication_in_compute")
        same = next((names for reason, names in reasons if reason == why), None)
        if same is None:
            reasons.append((why, [words[name]]))
        else:
            same.append(words[name])
    for why, names in reasons:
        yield message("unknown.parts_of_compute", parts=names, reason=why)


def _limits(ledger: pd.DataFrame, devices: DeviceSteps) -> Iterator[Limit]:
    """Yield what the parts that samples tell stand for, and of how many steps they are known."""
    known = {name: float(ledger[name].notna().mean()) for name in REFINED}
    if known["clock"]:
        if known["memory_bound"]:
            yield message("scope.full_clock_of_compute", reference=devices.reference)
        else:
            yield message("doubt.full_clock_of_all", reference=devices.reference)
    if known["memory_bound"]:
        yield message("scope.memory_bound_samples", least=MEMORY_BOUND)
    for name, frac in known.items():
        if 0 < frac < 1:
            yield message("unknown.in_some_steps", name=name, share=frac)


def _contention_frac(
    trace: Trace, windows: StepWindows, by_step: pd.DataFrame
) -> tuple[float, bool]:
    """Return the share of the step time that kernels lose beside communication.

    It is that of the steps with kernels.

    Returns:
        The share, and whether any kernel could be compared.
    """
    common = common_kernel_steps(trace, windows.ranks)
    lost_ns, measured = _contention_ns(trace, windows, common)
    traced = by_step[has_kernels(trace, by_step["step"], common)]
    return (lost_ns / float(traced["step_ns"].sum()), True) if measured else (0.0, False)


def _contention_ns(
    trace: Trace, windows: StepWindows, common: IntArray | None
) -> tuple[float, bool]:
    """Return the time that kernels of the analysed steps lose beside communication.

    Returns:
        Nanoseconds, summed over ranks and steps, and whether any kernel could be compared.
    """
    lost, measured = 0.0, False
    if not trace.row_count("kernel"):
        return lost, measured
    for rank in windows.ranks.tolist():
        kernels = windows.select(trace.rank_frame("kernel", rank, _KERNEL_COLUMNS))
        if common is not None:
            kernels = kernels[kernels["step"].isin(common)]
        shapes = trace.rank_frame("op", rank, ("op_id", "shapes")).dropna(subset=["shapes"])
        if kernels.empty or shapes.empty:
            continue
        excess = _excess_beside(kernels.merge(shapes, on="op_id"), kernels)
        if excess is not None:
            lost, measured = lost + excess, True
    return max(lost, 0.0), measured


def _excess_beside(compute: pd.DataFrame, kernels: pd.DataFrame) -> float | None:
    """Return how much longer kernels take beside communication than alone; None if unknown."""
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
