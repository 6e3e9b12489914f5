"""Of which steps the kernels of a capture are known, where only some were traced in depth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.intervals import pair, union
from ...tables.trace import Trace


def common_kernel_steps(trace: Trace, ranks: IntArray) -> IntArray | None:
    """Return the steps of which the kernels of all these ranks are known.

    Ranks are compared within a step, so a step of which the device time of some is known
    and of others not counts as one without kernels.

    Returns:
        Sorted steps; None where the capture has kernels, if any, of all that it holds.
    """
    if trace.kernel_steps is None:
        return None
    known = [np.array(trace.kernel_steps.get(rank, ()), np.int64) for rank in ranks.tolist()]
    common = known[0] if known else np.empty(0, np.int64)
    for steps in known[1:]:
        common = np.intersect1d(common, steps)
    return np.unique(common)


def has_kernels(
    trace: Trace, step: pd.Series[int], common: IntArray | None
) -> npt.NDArray[np.bool_]:
    """Return for each row whether kernels tell what the device did in its step.

    Args:
        trace: The capture.
        step: The step of each row.
        common: Of ``common_kernel_steps``.
    """
    if common is None:
        return np.full(len(step), trace.row_count("kernel") > 0)
    return np.isin(step.to_numpy(np.int64), common)


def traced_windows(windows: StepWindows, rank: int, common: IntArray) -> IntArray:
    """Return when a rank was in steps with kernels; steps that follow each other are joined."""
    frame = windows.frame
    own = frame[(frame["rank"] == rank) & frame["step"].isin(common)]
    return union(pair(own["start_ns"], own["end_ns"]))


def steps_with_kernels(trace: Trace, rank: int) -> pd.DataFrame:
    """Return the rows of the steps of a rank whose kernels are known."""
    steps = trace.rank_frame("step", rank)
    if trace.kernel_steps is None:
        return steps
    known = steps[steps["step"].isin(trace.kernel_steps.get(rank, ()))]
    return known.drop_duplicates("step", keep="last")


def device_extents(trace: Trace, kernel: pd.DataFrame) -> IntArray:
    """Return from when to when the device activities of a rank were recorded.

    Of a capture in one piece that is from the first start to the last end. Where single steps
    were traced, each run of them that follow each other has an extent of its own:
    between two runs nothing is known.

    Args:
        trace: The capture.
        kernel: step, start_ns, dur_ns of the activities of one rank.

    Returns:
        Extents in order that do not touch, shape (n, 2), ns.
    """
    if kernel.empty:
        return np.empty((0, 2), np.int64)
    start = kernel["start_ns"].to_numpy(np.int64)
    end = start + kernel["dur_ns"].to_numpy(np.int64)
    if trace.kernel_steps is None:
        return pair([start.min()], [end.max()])
    steps, of_row = np.unique(kernel["step"].to_numpy(np.int64), return_inverse=True)
    run = np.concatenate([[0], np.cumsum(np.diff(steps) > 1)])[of_row]
    first = np.full(run.max() + 1, np.iinfo(np.int64).max)
    last = np.full(run.max() + 1, np.iinfo(np.int64).min)
    np.minimum.at(first, run, start)
    np.maximum.at(last, run, end)
    return union(pair(first, last))
