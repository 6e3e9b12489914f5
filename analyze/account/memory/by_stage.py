"""Memory by pipeline stage: peaks, capacity, and which stages hold more than the others lead to expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import FloatArray
from ...tables.trace import Trace, stage_of_ranks

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "other")
"""What allocated memory is for; the columns end in ``_bytes``."""
COLUMNS = (
    *("stage", "ranks", "peak_bytes", "rss_bytes", "capacity_bytes", "peak_frac"),
    *(f"{name}_bytes" for name in CATEGORIES),
    *("steady_bytes", "is_steady", "reserved_bytes", "at_fullest_bytes"),
    "device_used_bytes",
)


def memory_by_stage(trace: Trace) -> pd.DataFrame:
    """Return the highest memory of each stage.

    ``peak_bytes`` is the allocator's peak where there is a device allocator, else
    null; ``peak_frac`` is that peak (else the resident set) over the capacity. The bytes
    by category are those of the sample that has most allocated, ``at_fullest_bytes`` what was
    allocated then. ``steady_bytes`` is the peak without the first step, where ``is_steady``.
    ``device_used_bytes`` is the most in use on one of its devices, by all processes.
    """
    frame = trace.frame("memory")
    if frame.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    stage = stage_of_ranks(trace, sorted(set(frame["rank"].tolist())))
    frame = frame.assign(stage=frame["rank"].map(stage))
    stated = trace.run.get("device_memory_bytes")
    if isinstance(stated, int):
        frame = frame.assign(capacity_bytes=frame["capacity_bytes"].fillna(stated))
    peak = frame["peak_bytes"].fillna(frame["allocated_bytes"])
    by_stage = (
        frame.assign(peak=peak)
        .groupby("stage", as_index=False)
        .agg(
            ranks=("rank", "nunique"),
            peak_bytes=("peak", "max"),
            rss_bytes=("rss_bytes", "max"),
            capacity_bytes=("capacity_bytes", "min"),
        )
    )
    used = by_stage["peak_bytes"].astype("Float64").fillna(by_stage["rss_bytes"].astype("Float64"))
    by_stage["peak_frac"] = (used / by_stage["capacity_bytes"].astype("Float64")).astype("Float64")
    fullest = fullest_samples(frame, "stage")
    at_fullest = fullest[[f"{name}_bytes" for name in CATEGORIES]]
    at_fullest = at_fullest.assign(at_fullest_bytes=fullest["allocated_bytes"])
    found = by_stage.join(at_fullest, on="stage").join(
        _steady(frame, is_since_start=trace.capabilities.has_peaks_since_start), on="stage"
    )
    found["device_used_bytes"] = found["stage"].map(_device_used(trace, stage)).astype("Float64")
    return found[list(COLUMNS)]


def _device_used(trace: Trace, stage: dict[int, int]) -> dict[int, float]:
    """Return the most bytes in use on a device of each stage, as the node agent samples them."""
    samples = trace.frame("device_sample")[["host", "uuid", "mem_used_bytes"]]
    joined = trace.frame("rank_device")[["rank", "host", "uuid"]]
    if samples.empty or joined.empty:
        return {}
    place = {"host": str, "uuid": str}
    most = samples.astype(place).groupby(["host", "uuid"])["mem_used_bytes"].max()
    joined = joined.astype(place).assign(stage=joined["rank"].map(stage))
    used = joined.join(most, on=["host", "uuid"]).groupby("stage")["mem_used_bytes"].max()
    return {int(str(number)): float(size) for number, size in used.dropna().items()}


def _steady(frame: pd.DataFrame, *, is_since_start: bool) -> pd.DataFrame:
    """Return the peak of the steps after the first by stage, and whether it is theirs.

    The first step creates the optimizer's state and workspaces of libraries. The probe reads the peak
    since the process began: one that no later step exceeds may be that of the first step. Other
    tools write the peak of each step.
    """
    numbered = frame[frame["step"] >= 0]
    first = numbered.groupby("rank")["step"].transform("min")
    is_first = (numbered["step"] == first).to_numpy()
    peak = numbered["peak_bytes"].fillna(numbered["allocated_bytes"]).astype("Float64")
    numbered = numbered.assign(peak=peak)
    begun = numbered[is_first].groupby("rank")["peak"].max()
    later = (
        numbered[~is_first]
        .groupby("rank")
        .agg(peak=("peak", "max"), reserved=("reserved_bytes", "max"), stage=("stage", "first"))
    )
    own = pd.DataFrame(
        {
            "stage": later["stage"],
            "steady_bytes": later["peak"],
            "reserved_bytes": later["reserved"].astype("Float64"),
            "is_steady": (later["peak"] != begun.reindex(later.index)).astype("boolean")
            if is_since_start
            else True,
        }
    ).dropna(subset=["steady_bytes"])
    # The fullest rank stands for its stage.
    own = own.sort_values("steady_bytes", kind="stable").drop_duplicates("stage", keep="last")
    return own.set_index("stage")[["steady_bytes", "reserved_bytes", "is_steady"]]


def used_bytes(by_stage: pd.DataFrame) -> pd.Series:
    """Return what each stage held in settled steps, else its peak, else its resident set."""
    used = by_stage["steady_bytes"].astype("Float64")
    for name in ("peak_bytes", "rss_bytes"):
        used = used.fillna(by_stage[name].astype("Float64"))
    return used


def fullest_samples(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the sample with most allocated of each stage or rank, by that as the index.

    Samples that tell what memory is for come first.
    """
    known = frame[[f"{name}_bytes" for name in CATEGORIES]].gt(0).any(axis=1)
    ordered = frame.assign(known=known).sort_values(
        [by, "known", "allocated_bytes"], na_position="first", kind="stable"
    )
    return ordered.drop_duplicates(by, keep="last").set_index(by)


def peak_memory_frac(by_stage: pd.DataFrame) -> float | None:
    """Return the fullest stage's share of its capacity, None if not known."""
    known = by_stage["peak_frac"].dropna()
    return float(known.max()) if len(known) else None


def stage_imbalance(by_stage: pd.DataFrame) -> tuple[int, float] | None:
    """Return the stage with the highest memory and its ratio to the median of the others.

    None with fewer than two stages or without figures.
    """
    values = used_bytes(by_stage).to_numpy(dtype=np.float64, na_value=np.nan)
    if len(values) < 2 or np.isnan(values).any():
        return None
    top = int(values.argmax())
    others = np.median(np.delete(values, top))
    return int(by_stage["stage"].iloc[top]), float(values[top] / others) if others else float("inf")


_AMBIGUOUS = 4
"""Up to so many stages the stages between the ends do not fix a line by a majority."""


class StageExcess(NamedTuple):
    """What a stage holds beside what the stages between the ends lead to expect."""

    stage: int
    held_bytes: float
    expected_bytes: float
    by_category: dict[str, float]
    """What is more than expected, bytes; categories that are not known are missing."""
    bytes_per_stage: float
    """By how much memory grows from stage to stage; it falls in 1F1B."""

    @property
    def ratio(self) -> float:
        """Return held over expected."""
        return self.held_bytes / self.expected_bytes


def stage_excess(
    by_stage: pd.DataFrame, in_flight: Sequence[float] | None = None
) -> list[StageExcess]:
    """Return every stage beside the line ``a + b k`` through the stages between the ends.

    k are the microbatches in flight, b >= 0 what one of them holds. Embedding, output head and
    logits are at the ends, so that the ends do not fix the line. It is the median of the slopes
    (Theil and Sen). Nothing with fewer than three stages.

    Args:
        by_stage: ``memory_by_stage``.
        in_flight: Microbatches in flight by stage; None: p - stage, as in 1F1B.
    """
    rows = by_stage.sort_values("stage")
    held = used_bytes(rows).to_numpy(np.float64, na_value=np.nan)
    if len(held) < 3 or np.isnan(held).any():
        return []
    known = in_flight if in_flight is not None and len(in_flight) == len(held) else None
    flight = np.asarray(known if known is not None else np.arange(len(held), 0, -1), np.float64)
    columns = {
        name: rows[f"{name}_bytes"].astype("Float64").to_numpy(np.float64, na_value=np.nan)
        for name in CATEGORIES
    }
    slope, expected = _line(np.asarray(held, np.float64), flight)
    if (expected <= 0).any():
        return []
    parts = {
        name: values - _line(np.asarray(values, np.float64), flight)[1]
        for name, values in columns.items()
        if not np.isnan(values).any()
    }
    per_stage = slope * float(flight[-1] - flight[0]) / (len(held) - 1)
    return [
        StageExcess(
            int(stage),
            float(held[at]),
            float(expected[at]),
            {name: float(over[at]) for name, over in parts.items()},
            per_stage,
        )
        for at, stage in enumerate(rows["stage"].to_numpy(np.int64))
    ]


def _line(values: FloatArray, flight: FloatArray) -> tuple[float, FloatArray]:
    """Return bytes of a microbatch in flight, and the line at all stages."""
    inner, at = values[1:-1], flight[1:-1]
    first, second = np.triu_indices(len(inner), 1)
    differ = at[second] != at[first]
    slopes = (inner[second] - inner[first])[differ] / (at[second] - at[first])[differ]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    if len(values) <= _AMBIGUOUS:
        slope = _least_slope(values, flight, slope)
    slope = max(slope, 0.0)
    # Of two stages the lower: one of them may hold more than its part.
    level = float(np.percentile(inner - slope * at, 50, method="lower"))
    line: FloatArray = np.asarray(level + slope * flight, dtype=np.float64)
    return slope, line


def _least_slope(values: FloatArray, flight: FloatArray, slope: float) -> float:
    """Return the slope of few stages: no more than the first stage allows.

    The first stage cannot hold less than its microbatches in flight. Of three stages only a falling
    line shows a slope: what its last stage lacks.
    """
    if len(values) == 3:
        rise = flight[1] - flight[2]
        slope = float((values[1] - values[2]) / rise) if rise > 0 else 0.0
    rise = flight[0] - flight[1]
    return min(slope, float((values[0] - values[1]) / rise)) if rise > 0 else slope
