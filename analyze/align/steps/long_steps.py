"""Single steps that are so long that the mean step is like none of them.

A compiler at work, a first save or a late connection takes seconds in a step or two, wherever
they lie. Such steps stay in the account, because what is in them was lost; but it is said how long
the step is without them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.listing import listed

from ...wording.quantities import percent
from ...wording.words import counted

MIN_RATIO = 3.0
"""From this many times the median on, a step is long."""
MAX_FRAC = 0.2
"""Largest share of the steps that may be long: more of them are a kind of step of their own."""
MIN_EXCESS = 0.1
"""Least share of all time that they take beyond the median, to be told."""
_SHOWN = 8


def long_steps_limit(frame: pd.DataFrame) -> list[str]:
    """Return what single long steps do to the mean, if they do.

    Args:
        frame: rank, step, start_ns and end_ns of the windows.
    """
    length = (frame["end_ns"] - frame["start_ns"]).groupby(frame["step"]).median()
    usual = float(length.median()) if len(length) else 0.0
    long = length[length >= MIN_RATIO * usual]
    if usual <= 0 or not len(long) or len(long) > MAX_FRAC * len(length):
        return []
    if len(long) > 2 and len(set(np.diff(long.index.to_numpy()).tolist())) == 1:
        return []  # Every so many steps: a kind of step of their own, which the mean rightly holds.
    beyond = float((long - usual).sum()) / float(length.sum())
    if beyond < MIN_EXCESS:
        return []
    steps = listed((f"{step} ({ns / 1e6:.4g} ms)" for step, ns in long.items()), most=_SHOWN)
    rest_ms = float(length.drop(long.index).mean()) / 1e6
    return [
        f"{counted(len(long), 'step')} of {len(length)} took at least {MIN_RATIO:.0f} times the median, {steps}: "
        f"{percent(beyond)} of all time is what they took longer, which every mean of this result holds; the "
        f"other steps took {rest_ms:.4g} ms in the mean"
    ]
