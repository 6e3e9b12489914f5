"""Memory that grows from step to step, and when it will be full.

A straight line is fitted to what each rank holds at its steps, the first ones left out,
because caches and allocators fill there. Growth is what a line explains nearly whole and
what goes on in both halves: a single jump, or one that levels off, is none.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...tables.arrays import IntArray
from ...tables.trace import Trace

WARM_UP = 1 / 3
"""Share of the steps that is left out."""
MIN_STEPS = 8
"""With fewer steps after that nothing is called growth."""
MIN_EXPLAINED = 0.9
"""Least share of the variance that a straight line explains."""
MIN_OF_HELD = 0.01
"""Least growth over the steps, as a share of what is held."""
MIN_OF_PROCESS_BYTES = 16 << 20
"""Least growth of a process: the probe's ring alone adds 8 MiB page by page, until its first lap is over."""
MIN_HALF = 0.25
"""Least part of the growth that lies in either half of the steps."""
COLUMNS = ("rank", "per_step_bytes", "held_bytes", "capacity_bytes", "steps", "is_device")


def growing_ranks(trace: Trace) -> pd.DataFrame:
    """Return the ranks whose memory grows, the fastest first.

    Memory is what a device allocator has given out, else the resident set of the process.

    Returns:
        rank, per_step_bytes (slope of the line), held_bytes (last step), capacity_bytes
        (null if not known), steps (how many the line goes through), is_device.
    """
    frame = trace.frame("memory")
    if frame.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    is_device = frame["allocated_bytes"].notna().groupby(frame["rank"]).transform("any")
    held = frame["allocated_bytes"].where(is_device, frame["rss_bytes"]).astype("Float64")
    frame = frame.assign(held=held, is_device=is_device)
    by_step = frame[frame["held"].notna() & (frame["step"] >= 0)]
    table = by_step.groupby(["rank", "step"])["held"].max().astype("float64").unstack("step")
    table = table.dropna(axis="columns")
    table = table.iloc[:, int(WARM_UP * table.shape[1]) :]
    if table.shape[1] < MIN_STEPS:
        return pd.DataFrame(columns=list(COLUMNS))
    facts = by_step.groupby("rank").agg(
        capacity_bytes=("capacity_bytes", "min"), is_device=("is_device", "any")
    )
    least_bytes = np.where(facts["is_device"].loc[table.index], 0, MIN_OF_PROCESS_BYTES)
    found = _lines(table, least_bytes).join(facts)
    found = found[found["grows"]].assign(steps=table.shape[1]).reset_index(names="rank")
    return found.sort_values("per_step_bytes", ascending=False, ignore_index=True)[list(COLUMNS)]


def _lines(table: pd.DataFrame, least_bytes: IntArray) -> pd.DataFrame:
    """Fit a line to each row, which must grow by so much: per_step_bytes, held_bytes, grows."""
    step, held = table.columns.to_numpy(np.float64), table.to_numpy(np.float64)
    centred, deviation = step - step.mean(), held - held.mean(axis=1, keepdims=True)
    slope = deviation @ centred / (centred @ centred)
    total = (deviation**2).sum(axis=1)
    explained = slope**2 * (centred @ centred) / np.where(total > 0, total, 1.0)
    middle = held.shape[1] // 2
    growth = held[:, -1] - held[:, 0]
    least_half = np.minimum(held[:, middle] - held[:, 0], held[:, -1] - held[:, middle])
    grows = (explained >= MIN_EXPLAINED) & (
        growth >= np.maximum(MIN_OF_HELD * held[:, -1], least_bytes)
    )
    grows &= (slope > 0) & (least_half >= MIN_HALF * growth)
    values = {"per_step_bytes": slope, "held_bytes": held[:, -1], "grows": grows}
    return pd.DataFrame(values, index=table.index)
