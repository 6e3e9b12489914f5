"""Waiting in one step for what made a rank slow in the steps before.

Ranks that average their models every few steps wait in one step for what made a rank slow
in all the steps before. So the account begins after a step that communicates and ends with
one: what is charged to a step was then worked in the steps of the account. For example, with
communication in steps 5, 10, 15 and 20 of 22::

    1 2 3 4 5 | 6 7 8 9 10 | 11 12 13 14 15 | 16 17 18 19 20 | 21 22
              '------------------ analysed ------------------'
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc

from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message

Steps = npt.NDArray[np.int64]
MIN_KEPT = 0.5
"""Least share of the steps that whole cycles must hold; else all steps are kept."""

MIN_CARRIED = 0.05
"""Share of the step from which on a limit says that waiting crosses the border of the account."""


def whole_cycles(trace: Trace, steps: Steps) -> tuple[Steps, tuple[Limit, ...]]:
    """Return the steps that make up whole cycles, and what is to be said of the others.

    All steps where each communicates, or none, or where they do not follow each other.
    """
    silent = ~np.isin(steps, _communicating(trace))
    if not silent.any() or silent.all() or not (np.diff(steps) == 1).all():
        return steps, ()
    found = steps[~silent]
    kept = steps[(steps > found[0]) & (steps <= found[-1])]
    if len(kept) == len(steps):
        return steps, ()
    if len(kept) < MIN_KEPT * len(steps):
        return steps, (message("doubt.cycles_too_seldom", found=len(found), steps=len(steps)),)
    lost = len(steps) - len(kept)
    return kept, (message("scope.whole_cycles", found=len(found), steps=len(steps), lost=lost),)


def cycles(steps: Steps, communicating: Steps) -> Steps:
    """Return the number of the cycle of each step: one ends with each step that communicates.

    What comes after the last of these belongs to the last cycle.
    """
    ends = np.isin(steps, communicating)
    before: Steps = np.cumsum(ends) - ends
    return np.minimum(before, max(int(ends.sum()) - 1, 0))


def carried_limits(frame: pd.DataFrame, run: Steps, *, step_time_ns: float) -> list[Limit]:
    """Return what of the waiting begins or ends outside of the analysed steps.

    Ranks that begin a run of steps further apart than they end it waited in it for
    what was slow before; ranks that end it further apart will be waited for after it. A
    pipeline ends as it began.

    Args:
        frame: rank, step, start_ns and end_ns of the windows.
        run: The run of steps that each row is of.
        step_time_ns: The mean step time.
    """
    if frame["rank"].nunique() < 2 or step_time_ns <= 0:
        return []
    by_rank = frame.assign(run=run).groupby(["run", "rank"])
    spans = by_rank.agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
    by_run = spans.groupby(level="run")
    apart = by_run.max() - by_run.mean()
    change = (apart["start_ns"] - apart["end_ns"]) / frame["step"].nunique() / step_time_ns
    before, after = float(change.clip(lower=0).sum()), float((-change).clip(lower=0).sum())
    limits: list[Limit] = []
    if before >= MIN_CARRIED:
        limits.append(message("doubt.waiting_from_before", share=before))
    if after >= MIN_CARRIED:
        limits.append(message("doubt.waiting_for_after", share=after))
    return limits


def _communicating(trace: Trace) -> Steps:
    """Return the steps with any communication on any rank."""
    tables = [trace.tables[name] for name in ("collective", "p2p") if name in trace.tables]
    found = [pc.unique(table["step"]).to_numpy().astype(np.int64) for table in tables]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))
