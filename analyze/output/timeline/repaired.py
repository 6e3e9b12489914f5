"""One step as it would be after repairs, on the rows of the recorded one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from ...align.steps.windows import StepWindows
from ...explain.whatif import RepairedTimes
from .slices import StepSlices


def repaired_step(windows: StepWindows, times: RepairedTimes, drawn: StepSlices) -> StepSlices:
    """Return the slices of a step at the times of the replay after repairs.

    Waits shrink with what they waited for; what a repair removes altogether has no slice. As in the
    recorded step, times count from the first begin of a rank.

    Args:
        windows: The analysed steps, the drawn one among them.
        times: Those of the replay.
        drawn: The recorded step.
    """
    own = windows.frame[windows.frame["step"] == drawn.step]
    rank = own["rank"].to_numpy(np.int64)
    begins, ends = (times.at(rank, own[name].to_numpy(np.int64)) for name in ("start_ns", "end_ns"))
    begin_ns = int(begins.min())
    moved = _moved(windows, times, drawn, begin_ns)
    return replace(
        drawn,
        length_ns=int(ends.max()) - begin_ns,
        longest_ns=int((ends - begins).max()),
        slices=moved[moved["end_ns"] > moved["start_ns"]].reset_index(drop=True),
    )


def _moved(
    windows: StepWindows, times: RepairedTimes, drawn: StepSlices, begin_ns: int
) -> pd.DataFrame:
    """Return the slices at their new times, ns after the new begin of the step."""
    slices = drawn.slices
    origin = pd.Series([drawn.origin_ns])
    origin_ns = int(windows.shifted(pd.Series([drawn.step]), origin)[0])
    rank = slices["rank"].to_numpy(np.int64)
    columns = {
        name: times.at(rank, origin_ns + slices[name].to_numpy(np.int64)).round() - begin_ns
        for name in ("start_ns", "end_ns")
    }
    return slices.assign(**{name: value.astype(np.int64) for name, value in columns.items()})
