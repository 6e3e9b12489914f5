"""A capture that grows, look by look: which ranks became slow since the last one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout

from ...tables.arrays import FloatArray, IntArray
from ...tables.part import StepRange, of_steps
from ...tables.trace import Trace
from .durations import durations_of
from .grid import Grid, grid_of
from .online import OnlineDetector
from .verdict import Persistence, RankVerdict

MOST_STEPS = 240
"""Steps that one look takes in, the newest: the past that a rank is compared with is not much longer."""


class Look(NamedTuple):
    """What came since the look before.

    Attributes:
        steps: First and last step that all ranks ended since; None where there is none.
        step_time_ns: Median length of these steps, each of its slowest rank; NaN without steps.
        found: Ranks newly found slow.
        recovered: Ranks that were slow and are as fast as before again.
        slow: Ranks that are slow now, the slowest first.
        began_anew: Whether other ranks or microbatches came, so that what is usual is learnt anew.
        has_passes: Whether a pass of a microbatch is recorded; without any no rank is judged.
    """

    steps: tuple[int, int] | None = None
    step_time_ns: float = float("nan")
    found: tuple[RankVerdict, ...] = ()
    recovered: tuple[RankVerdict, ...] = ()
    slow: tuple[RankVerdict, ...] = ()
    began_anew: bool = False
    has_passes: bool = False


class Follower:
    """Judges the ranks of a running job by the steps that came since the last look."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.last_step = -1
        """The last step that was looked at."""
        self._judged: _Judged | None = None
        self._slow: dict[int, RankVerdict] = {}

    def look(self, trace: Trace) -> Look:
        """Return what the newest steps of a capture show; no step is looked at twice.

        Args:
            trace: The capture as it is now. Steps that were looked at before may be absent.
        """
        lengths = _ended_by_all(trace, self.last_step)
        if lengths.empty:
            return Look(slow=tuple(self._slow.values()), has_passes=self._judged is not None)
        steps = StepRange(int(lengths.index[0]), int(lengths.index[-1]))
        self.last_step = steps.last
        seen = Look(steps=(steps.first, steps.last), step_time_ns=float(lengths.median()))
        durations = durations_of(of_steps(trace, steps))
        durations = durations[durations["step"].isin(lengths.index) & (durations["dur_ns"] > 0)]
        if durations.empty:
            return seen
        return self._judge(seen, grid_of(durations, trace.layout), trace.layout)

    def _judge(self, seen: Look, grid: Grid, layout: ParallelLayout | None) -> Look:
        judged, before = self._judged, self._judged
        if judged is None or not judged.takes(grid):
            judged = self._judged = _Judged(grid, layout)
            self._slow = {}
        found = judged.update(grid)
        now = {own.rank: own for own in judged.detector.verdicts()}
        slow = {rank: own for rank, own in now.items() if own.persistence is Persistence.PERSISTENT}
        recovered = tuple(now[rank] for rank in self._slow if rank not in slow)
        self._slow = dict(sorted(slow.items(), key=lambda item: -(item[1].slowdown or 0.0)))
        return seen._replace(
            found=tuple(now[own.rank] for own in found),
            recovered=recovered,
            slow=tuple(self._slow.values()),
            began_anew=before is not None and judged is not before,
            has_passes=True,
        )


class _Judged:
    """A detector, and the shape of the job that it knows."""

    def __init__(self, grid: Grid, layout: ParallelLayout | None) -> None:
        self.ranks = np.asarray(grid.cube.ranks, dtype=np.int64)
        self.shape = (grid.kinds, grid.items, grid.features is None)
        self.detector = OnlineDetector(grid.cube.ranks, layout, len(grid.kinds))

    def takes(self, grid: Grid) -> bool:
        """Tell whether the steps of a table are of the same job."""
        of_these = np.isin(grid.cube.ranks, self.ranks).all()
        return bool(of_these) and self.shape == (grid.kinds, grid.items, grid.features is None)

    def update(self, grid: Grid) -> tuple[RankVerdict, ...]:
        """Take in the steps of a table, and return the verdicts on ranks newly found slow."""
        place = np.searchsorted(self.ranks, grid.cube.ranks)
        found: dict[int, RankVerdict] = {}
        for position, step in enumerate(grid.steps.tolist()):
            durations, features = grid.by_rank(position)
            known = None if features is None else self._of_all(features, place)
            for own in self.detector.update(step, self._of_all(durations, place), known):
                found[own.rank] = own
        return tuple(found.values())

    def _of_all(self, values: FloatArray, place: IntArray) -> FloatArray:
        """Return what some ranks have in the place of each among all; NaN for the others."""
        if len(values) == len(self.ranks):
            return values
        filled = np.full((len(self.ranks), *values.shape[1:]), np.nan)
        filled[place] = values
        return filled


def _ended_by_all(trace: Trace, after: int) -> pd.Series:
    """Return the length of the newest steps that every rank has ended, by step, ascending; ns."""
    steps = trace.frame("step")
    steps = steps[steps["step"] > after]
    if steps.empty:
        return pd.Series(dtype=np.float64)
    by_step = steps.groupby("step").agg(ranks=("rank", "nunique"), dur_ns=("dur_ns", "max"))
    return by_step.loc[by_step["ranks"] == len(trace.ranks), "dur_ns"].iloc[-MOST_STEPS:]
