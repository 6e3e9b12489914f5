"""Memory by pipeline stage: peaks, capacity, and how unequal the stages are."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .capture.trace import Trace
from .causes.effects import stage_of_ranks

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "other")
"""What allocated memory is for; the columns end in ``_bytes``."""
COLUMNS = (
    *("stage", "ranks", "peak_bytes", "rss_bytes", "capacity_bytes", "peak_frac"),
    *(f"{name}_bytes" for name in CATEGORIES),
)


def memory_by_stage(trace: Trace) -> pd.DataFrame:
    """Return the highest memory of each stage.

    ``peak_bytes`` is the allocator's peak where there is a device allocator, else
    null; ``peak_frac`` is that peak (else the resident set) over the capacity. The bytes
    by category are those of the sample that has most allocated.
    """
    frame = trace.frame("memory")
    if frame.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    stage = stage_of_ranks(trace, sorted(set(frame["rank"].tolist())))
    frame = frame.assign(stage=frame["rank"].map(stage))
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
    at_fullest = fullest_samples(frame, "stage")[[f"{name}_bytes" for name in CATEGORIES]]
    return by_stage.join(at_fullest, on="stage")[list(COLUMNS)]


def fullest_samples(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the sample with most allocated of each stage or rank, by that as the index.

    Samples that tell what memory is for come first.
    """
    known = frame[[f"{name}_bytes" for name in CATEGORIES]].notna().any(axis=1)
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
    used = by_stage["peak_bytes"].astype("Float64").fillna(by_stage["rss_bytes"].astype("Float64"))
    values = used.to_numpy(dtype=np.float64, na_value=np.nan)
    if len(values) < 2 or np.isnan(values).any():
        return None
    top = int(values.argmax())
    others = np.median(np.delete(values, top))
    return int(by_stage["stage"].iloc[top]), float(values[top] / others) if others else float("inf")
