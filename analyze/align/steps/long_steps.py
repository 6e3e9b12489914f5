"""Single steps that are so long that the mean step is like none of them.

A compiler at work, a first save or a late connection takes seconds in a step or two, wherever
they lie. Such steps stay in the account, because what is in them was lost; but it is said how long
the step is without them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...wording.limits import Limit
from ...wording.message import message

MIN_RATIO = 3.0
"""From this many times the median on, a step is long."""
MAX_FRAC = 0.2
"""Largest share of the steps that may be long: more of them are a kind of step of their own."""
MIN_EXCESS = 0.1
"""Least share of all time that they take beyond the median, to be named."""


def long_steps_limit(frame: pd.DataFrame) -> list[Limit]:
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
    return [
        message(
            "doubt.long_steps",
            long=len(long),
            steps=len(length),
            ratio=MIN_RATIO,
            shown=[
                message("doubt.long_step", step=step, length_ns=float(ns))
                for step, ns in zip(long.index.tolist(), long.tolist(), strict=True)
            ],
            beyond=beyond,
            rest_ns=float(length.drop(long.index).mean()),
        )
    ]
