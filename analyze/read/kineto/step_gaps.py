"""Time between the marks of steps: where a program marks a part of each step, the loop does the rest there.

Such a part often leaves out loading data::

    marks     |-- step 1 --|    |-- step 2 --|    |-- step 3 --|
    steps     |----- 1 ---------|----- 2 ---------|---- 3 -----|
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ...wording.limits import Limit
from ...wording.message import message
from .columns import StepWindows
from .event_columns import IntArray

_LEAST_GAP = 0.01
"""Share of the usual step below which a gap is that between two calls of a profiler."""
_MOST_GAP = 10
"""How many usual steps, or usual gaps, a gap may last: longer ones are evaluation, or a checkpoint."""


def until_the_next(steps: StepWindows) -> tuple[StepWindows, list[Limit]]:
    """Return the steps, each until the step of the next number begins, and what is said of the time between.

    Args:
        steps: In order of time, as they are marked on the host.
    """
    if steps.is_whole_file or len(steps.number) < 2:
        return steps, []
    gap = steps.start[1:] - steps.end[:-1]
    usual = float(np.median(steps.end - steps.start))
    follows = (np.diff(steps.number) == 1) & (gap > 0)
    if not follows.any():
        return steps, []
    most = _MOST_GAP * max(usual, float(np.median(gap[follows])))
    is_step = follows & (gap > _LEAST_GAP * usual) & (gap <= most)
    end: IntArray = steps.end.copy()
    end[:-1][is_step] = steps.start[1:][is_step]
    said: list[Limit] = []
    if is_step.any():
        share = float(gap[is_step].sum() / (steps.end[-1] - steps.start[0]))
        said.append(message("assumed.steps_until_the_next", share=share))
    left_out = gap[follows & (gap > most)]
    if len(left_out):
        said.append(message("scope.long_gaps", count=len(left_out), time_ns=int(left_out.sum())))
    return replace(steps, end=end), said
