"""Which kernels the devices spent their time on, over ranks, phases, axes and stages.

Ranks are read one by one and reduced to sums and logarithmic histograms, so that memory
holds the kernels of one rank. A percentile from a histogram is within 1 % of the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ...tables.intervals import covered_lengths, pair, total_length, union
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from ..mfu.devices import computing_devices
from .coverage import steps_with_kernels
from .idle import DeviceIdle, device_idle, device_work
from .places import kernel_places

PLACE = ["phase", "axis", "stage"]
_KEY = ["name", "category", *PLACE]
_BINS_PER_DOUBLING = 64
"""A bin is 1.1 % wide; its middle is at most 0.6 % from any value in it."""
_COLUMNS = [
    "step",
    "name_id",
    "category",
    "start_ns",
    "dur_ns",
    "correlation",
    "op_id",
    "launch_ns",
    "device",
    "stream",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """Kernels of a capture; shares of a quantity that is zero are null."""

    ranks: pd.DataFrame
    """rank, device_events, unlinked_events, unknown_ns (summed durations of unknown kind), span_ns,
    step_ns (its steps with kernels together, null without steps), busy_ns, idle_ns, starved_ns,
    launch_bound_ns and launch_bound_frac (of the span), as ``device_idle`` defines them; devices that
    the rank computes on, and device_busy_ns, the sum of what each of its devices is busy."""
    kernels: pd.DataFrame
    """One row a name, category, phase, axis and stage, longest first: count, total_ns, busy_frac
    (of the busy time of all devices; what it does on two streams at once counts once), step_frac
    (the same of their steps), p50_ns, p99_ns, max_ns,
    linked (how many have a launch), delay_p50_ns, delay_p99_ns (from the host's call to the
    start), ranks (how many ran it), slowest_rank, slowest_over_median (its total over the
    median of the ranks that ran it)."""
    places: pd.DataFrame
    """One row a phase, axis and stage: count, total_ns, busy_frac, step_frac."""
    limits: tuple[Limit, ...]


def kernel_report(trace: Trace) -> KernelReport:
    """Sum up the device activities of all ranks, synchronisation rows left out.

    Different kernels that run at the same time both count, so that shares of
    the busy time may add up to more than one; none is more than one by itself.
    """
    if not trace.row_count("kernel") and trace.kernel_steps is None:
        return _without_kernels(trace)
    ranks, parts = [], []
    for rank in trace.ranks:
        kernel = _device_work(trace, rank)
        ranks.append(_rank_row(trace, rank, kernel, device_idle(trace, rank, kernel)))
        if len(kernel):
            parts.append(_rank_part(trace, rank, kernel))
    table = pd.DataFrame(ranks)
    busy_ns = table["device_busy_ns"].sum()
    step_ns = (table["step_ns"] * table["devices"]).sum(min_count=1)
    if not parts:
        return _of_no_kernels(table)
    part = pd.concat(parts, ignore_index=True)
    totals, of_places = (
        part[part["what"] == what].drop(columns=["what", "bin"]) for what in ("sum", "place")
    )
    kernels = _with_shares(_kernels(totals, part), busy_ns, step_ns)
    sums = ["count", "total_ns", "covered_ns"]
    places = _with_shares(of_places.groupby(PLACE, as_index=False)[sums].sum(), busy_ns, step_ns)
    return KernelReport(
        ranks=table,
        kernels=kernels.sort_values(["total_ns", *_KEY], ascending=[False] + [True] * len(_KEY)),
        places=places.sort_values("total_ns", ascending=False),
        limits=tuple(_limits(table, places)),
    )


def _without_kernels(trace: Trace) -> KernelReport:
    """Return the report of a capture without kernels: a thousand ranks are not looked at for that."""
    steps = trace.frame("step")
    step_ns = steps.groupby("rank")["dur_ns"].sum().reindex(list(trace.ranks))
    known = dict.fromkeys(("span_ns", "busy_ns", "idle_ns", "device_busy_ns"), 0) | {"devices": 1}
    counts = dict.fromkeys(("device_events", "unlinked_events", "unknown_ns"), 0)
    unknown = dict.fromkeys(("starved_ns", "launch_bound_ns", "launch_bound_frac"))
    others = {"step_ns": step_ns.to_numpy(), **known, **unknown}
    return _of_no_kernels(pd.DataFrame({"rank": list(trace.ranks), **counts, **others}))


def _of_no_kernels(ranks: pd.DataFrame) -> KernelReport:
    empty = pd.DataFrame(columns=[*_KEY, "total_ns"])
    return KernelReport(ranks=ranks, kernels=empty, places=empty[[*PLACE]], limits=())


def _device_work(trace: Trace, rank: int) -> pd.DataFrame:
    kernel = trace.rank_frame("kernel", rank, _COLUMNS)
    work = kernel[kernel["category"] != KernelCategory.SYNC.value]
    names = trace.rank_frame("name", rank).set_index("name_id")["name"]
    return work.assign(
        name=work["name_id"].map(names).fillna("unknown"), category=work["category"].astype(str)
    )


def _rank_row(
    trace: Trace, rank: int, kernel: pd.DataFrame, idle: DeviceIdle
) -> dict[str, int | float | None]:
    is_unknown = kernel["category"] == KernelCategory.UNKNOWN.value
    steps = steps_with_kernels(trace, rank)
    bound_ns = idle.launch_bound_ns
    return {
        "rank": rank,
        "device_events": len(kernel),
        "unlinked_events": int(kernel["launch_ns"].isna().sum()),
        "unknown_ns": int(kernel.loc[is_unknown, "dur_ns"].sum()),
        "span_ns": idle.span_ns,
        "step_ns": int(steps["dur_ns"].sum()) if len(steps) else None,
        "busy_ns": idle.busy_ns,
        "idle_ns": idle.idle_ns,
        "starved_ns": idle.starved_ns,
        "launch_bound_ns": bound_ns,
        "launch_bound_frac": None if bound_ns is None else bound_ns / idle.span_ns,
        "devices": max(len(computing_devices(kernel)), 1),
        "device_busy_ns": _busy_of_each_device(kernel, idle.busy_ns),
    }


def _busy_of_each_device(kernel: pd.DataFrame, of_any_ns: int) -> int:
    """Return what each device of a rank is busy, summed; ``of_any_ns`` is what any of them is."""
    if kernel["device"].nunique() < 2:
        return of_any_ns
    times = [
        union(pair(own["start_ns"], own["start_ns"] + own["dur_ns"]))
        for _, own in device_work(kernel).groupby("device")
    ]
    return sum(map(total_length, times))


def _rank_part(trace: Trace, rank: int, kernel: pd.DataFrame) -> pd.DataFrame:
    """Return the sums of one rank, and its histograms of durations and launch delays."""
    rows = kernel.join(kernel_places(trace, rank, kernel))
    linked = rows[rows["launch_ns"].notna()]
    delay_ns = (linked["start_ns"] - linked["launch_ns"]).astype(np.int64)
    sums = {"count": ("dur_ns", "size"), "total_ns": ("dur_ns", "sum")}
    sums |= {"max_ns": ("dur_ns", "max"), "linked": ("launch_ns", "count")}
    parts = [
        _covered(rows, _KEY, sums).assign(what="sum"),
        _covered(rows, PLACE, sums).assign(what="place"),
        _histogram(rows, rows["dur_ns"]).assign(what="duration"),
        _histogram(linked, delay_ns).assign(what="delay"),
    ]
    return pd.concat(parts, ignore_index=True).assign(rank=rank)


def _covered(rows: pd.DataFrame, key: list[str], sums: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """Return sums by key, and in ``covered_ns`` how long any of its work ran, on each device."""
    grouped = rows.groupby(key, observed=True)
    found = grouped.agg(**sums).reset_index()
    if rows["stream"].nunique() < 2 and rows["device"].nunique() < 2:
        return found.assign(covered_ns=found["total_ns"])
    device, devices = pd.factorize(rows["device"])
    owner = grouped.ngroup().to_numpy(np.int64) * len(devices) + device
    start = rows["start_ns"].to_numpy(np.int64)
    end = start + rows["dur_ns"].to_numpy(np.int64)
    covered = covered_lengths(owner, start, end, len(found) * len(devices))
    return found.assign(covered_ns=covered.reshape(-1, len(devices)).sum(axis=1))


def _histogram(rows: pd.DataFrame, values_ns: pd.Series[int]) -> pd.DataFrame:
    """Return how many values of each key fall in each bin; values below 1 ns are in bin 0."""
    bins = np.floor(np.log2(np.maximum(values_ns, 1)) * _BINS_PER_DOUBLING).astype(np.int64)
    counted_rows = rows[_KEY].assign(bin=bins)
    return counted_rows.groupby([*_KEY, "bin"], as_index=False, observed=True).agg(
        count=("bin", "size")
    )


def _kernels(totals: pd.DataFrame, part: pd.DataFrame) -> pd.DataFrame:
    over_ranks = totals.groupby(_KEY).agg(
        count=("count", "sum"),
        total_ns=("total_ns", "sum"),
        covered_ns=("covered_ns", "sum"),
        max_ns=("max_ns", "max"),
        linked=("linked", "sum"),
        ranks=("rank", "nunique"),
        median_ns=("total_ns", "median"),
        slowest_ns=("total_ns", "max"),
    )
    slowest = totals.loc[totals.groupby(_KEY)["total_ns"].idxmax()].set_index(_KEY)["rank"]
    durations, delays = (part[part["what"] == what] for what in ("duration", "delay"))
    longest = over_ranks["max_ns"]
    is_even = over_ranks["total_ns"] == longest * over_ranks["count"]

    def of_durations(share: float) -> pd.Series[float]:
        # The middle of a bin may lie beyond the longest one.
        found = _percentile(durations, share).clip(upper=longest)
        return found.where(~is_even, longest)

    columns = {
        "p50_ns": of_durations(0.50),
        "p99_ns": of_durations(0.99),
        "delay_p50_ns": _percentile(delays, 0.50),
        "delay_p99_ns": _percentile(delays, 0.99),
        "slowest_rank": slowest,
        "slowest_over_median": over_ranks["slowest_ns"] / over_ranks["median_ns"].clip(lower=1),
    }
    return over_ranks.drop(columns=["median_ns", "slowest_ns"]).assign(**columns).reset_index()


def _percentile(histogram: pd.DataFrame, share: float) -> pd.Series[float]:
    """Return the middle of the bin in which each key reaches a share of its values."""
    merged = histogram.groupby([*_KEY, "bin"])["count"].sum().reset_index().sort_values("bin")
    grouped = merged.groupby(_KEY)["count"]
    reached = merged[grouped.cumsum() >= share * grouped.transform("sum")]
    first = reached.drop_duplicates(_KEY).set_index(_KEY)["bin"]
    return 2.0 ** ((first + 0.5) / _BINS_PER_DOUBLING)


def _with_shares(table: pd.DataFrame, busy_ns: float, step_ns: float) -> pd.DataFrame:
    """Return a table with what it covers as shares of the busy time and of the steps of all devices."""
    covered = table["covered_ns"]
    return table.drop(columns="covered_ns").assign(
        busy_frac=covered / (busy_ns if busy_ns > 0 else np.nan),
        step_frac=covered / (step_ns if step_ns > 0 else np.nan),
    )


def _limits(ranks: pd.DataFrame, places: pd.DataFrame) -> list[Limit]:
    limits: list[Limit] = []
    unlinked = int(ranks["unlinked_events"].sum())
    if unlinked:
        events = int(ranks["device_events"].sum())
        limits.append(message("unknown.no_launch", unlinked=unlinked, events=events))
    if ranks["unknown_ns"].any():
        unknown_ns = float(ranks["unknown_ns"].sum())
        limits.append(message("doubt.kernels_of_unknown_kind", time_ns=unknown_ns))
    idle = int((ranks["device_events"] == 0).sum())
    if idle:
        limits.append(message("missing.no_device_activities", count=idle))
    if ranks["launch_bound_ns"].isna().any() and not idle:
        limits.append(message("unknown.launch_bound"))
    if (places["stage"] < 0).all():
        limits.append(message("unknown.stages"))
    return limits
