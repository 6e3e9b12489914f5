"""Which steps are analysed, and each rank's window of each of them."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec.structs import replace

from meshscope.probe.schema.terms import StepDetail

from ...tables.arrays import FloatArray, IntArray
from ...tables.intervals import pair
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from .choice import in_order, long_steps_limit, most_detailed, without_repeats
from .cycles import carried_limits, whole_cycles
from .same_step import without_unmatched
from .tail import recorded_after
from .whole_capture import WHOLE_CAPTURE, whole_capture, within_window

__all__ = ["WHOLE_CAPTURE", "StepWindows", "step_windows"]

MOST_GAP = 0.01
"""Share of the median window by which the end of a step and the begin of the next may differ."""


class StepWindows(msgspec.Struct, frozen=True, kw_only=True):
    """The analysed steps and their windows.

    ``shift_ns`` moves the events of a step onto one common time line that begins
    at 0 with the first window: all times then fit a float exactly, and steps that
    have a time origin each do not overlap.
    """

    frame: pd.DataFrame
    """rank, step, start_ns, end_ns (shifted), tokens; one row a rank and step, sorted."""
    steps: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    shift_ns: dict[int, int]
    default_shift_ns: int
    """Shift of events outside the analysed steps."""
    run: npt.NDArray[np.int64]
    """Number of the run of each step, rising: a step of a rank begins when the one before it in
    its run ends."""
    chained: bool
    """True where there are several steps and clocks go on from one to the next. Else each step is
    looked at by itself: it begins where its ranks began."""
    step_time_ns: float
    """Mean step time of the job: with chained steps the mean over ranks of last end less first
    start of every run, per step; else the mean over steps of the longest window. 0 without steps."""
    detail: StepDetail = StepDetail.FULL
    """What the capture holds of every analysed step."""
    sampled: bool = False
    """True where steps were left out because the capture holds less of them."""
    all_steps: int = 0
    """How many steps there are with those."""
    of_all_ns: float | None = None
    """Mean length of all these; None where none was left out so."""
    limits: tuple[Limit, ...] = ()

    @property
    def has_marks(self) -> bool:
        """Return whether ends of steps were recorded; else the whole capture is one window."""
        return WHOLE_CAPTURE not in self.steps

    @property
    def mean_ns(self) -> float:
        """Return the mean window, of which classes are shares; it is no longer than the step time.

        The windows of a single step begin and end apart on its ranks, and the longest is the
        step time: what ranks spend on average is a share of their own windows.
        """
        if self.chained or self.frame.empty:
            return self.step_time_ns
        return float((self.frame["end_ns"] - self.frame["start_ns"]).mean())

    def step_tokens(self) -> FloatArray | None:
        """Return the tokens of each step over all ranks; None unless every rank states some in each.

        Plain floats: an integer that is not known makes a comparison neither true nor false, which a
        reduction passes over.
        """
        if self.frame.empty:
            return None
        known = self.frame["tokens"].astype("float64")
        known = known.where(known > 0)
        if known.isna().any():
            return None
        by_step = known.groupby(self.frame["step"]).sum()
        return np.asarray(by_step.reindex(self.steps), dtype=np.float64)

    def select(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the analysed steps and ranks.

        In a capture without step boundaries what overlaps the one window of its rank is.
        """
        if not self.has_marks:
            frame = frame[frame["rank"].isin(self.ranks)]
            inside = within_window(frame, self.frame, self.default_shift_ns)
            return inside.assign(step=WHOLE_CAPTURE)
        kept = frame["rank"].isin(self.ranks) & frame["step"].isin(self.steps)
        return frame.copy(deep=False) if kept.all() else frame[kept]

    def intervals_of(self, rank: int, steps: IntArray | None = None) -> IntArray:
        """Return the analysed steps of a rank, or some of them, in the time of its events."""
        own = self.frame[self.frame["rank"] == rank]
        if steps is not None:
            own = own[own["step"].isin(steps)]
        shift = own["step"].map(self.shift_ns).to_numpy(np.int64)
        start = own["start_ns"].to_numpy(np.int64) - shift
        return pair(start, own["end_ns"].to_numpy(np.int64) - shift)

    def shifted(self, step: pd.Series, time_ns: pd.Series) -> IntArray:
        """Return times of events of the given steps on the common time line."""
        times = np.asarray(time_ns, dtype=np.int64)
        if all(shift == self.default_shift_ns for shift in self.shift_ns.values()):
            return times + self.default_shift_ns
        return times + np.asarray(
            step.map(self.shift_ns).fillna(self.default_shift_ns), dtype=np.int64
        )


def step_windows(trace: Trace) -> StepWindows:
    """Return the windows of the steps that every captured rank finished.

    The first step of a capture of ours, and of each later attempt of the job, is left out
    when there are at least three, because it holds one-time work (allocator, communicators,
    caches).
    """
    frame = trace.frame("step")
    limits: list[Limit] = []
    if frame.empty:
        frame = whole_capture(trace)
        is_own = trace.capabilities.begins_with_process
        limits.append(
            message("scope.whole_capture_marks") if is_own else message("scope.whole_capture")
        )
    limits += recorded_after(trace)
    frame, unusable = without_repeats(frame)
    limits += unusable
    absent = sorted(set(trace.ranks) - set(frame["rank"].tolist()))
    if absent and len(frame):
        limits.append(_no_finished_step(trace, absent))
    common = _on_every_rank(frame, limits)
    common, unmatched = without_unmatched(trace, frame, common)
    limits += unmatched
    if not trace.per_step_clock:
        frame, common, disordered = in_order(frame, common)
        limits += disordered
    if trace.capabilities.begins_with_process and len(common) >= 3:
        common = _without_first_steps(trace, common, limits)
    choice = most_detailed(frame, common)
    limits += choice.limits
    sampled = len(choice.steps) < len(common)
    steps = choice.steps
    if choice.detail is StepDetail.FULL and not trace.per_step_clock:
        steps, partial = whole_cycles(trace, steps)
        limits += partial
    frame = frame[frame["step"].isin(steps)].reset_index(drop=True)
    windows = _windows(trace, frame, steps, limits)
    return replace(
        windows,
        detail=choice.detail,
        sampled=sampled,
        all_steps=len(common),
        of_all_ns=choice.of_all_ns,
    )


def _no_finished_step(trace: Trace, absent: list[int]) -> Limit:
    if trace.capabilities.begins_with_process:
        return message("missing.no_finished_step_marks", count=len(absent), ranks=absent)
    return message("missing.no_finished_step", count=len(absent), ranks=absent)


def _on_every_rank(frame: pd.DataFrame, limits: list[Limit]) -> IntArray:
    counts = frame.groupby("step")["rank"].nunique()
    is_common = counts == frame["rank"].nunique()
    common: IntArray = counts.index[is_common].to_numpy(np.int64)
    if len(common) < len(counts):
        lost = len(counts) - len(common)
        limits.append(message("missing.not_on_every_rank", lost=lost, steps=len(counts)))
    return common


def _without_first_steps(
    trace: Trace, common: npt.NDArray[np.int64], limits: list[Limit]
) -> npt.NDArray[np.int64]:
    """Return the steps without the first one that each attempt of the job finished."""
    begins = np.asarray(trace.frame("attempt")["first_step"], dtype=np.int64)
    places = np.searchsorted(common, begins[begins >= common[0]])
    if trace.chosen is None or trace.chosen[0] <= begins.min(initial=0):
        places = np.append(0, places)
    first = common[np.unique(places[places < len(common)])]
    if not len(first):
        return common
    if len(first) == len(common):
        first = common[:1]
    limits.append(message("scope.first_steps", steps=[(step, step) for step in first.tolist()]))
    return common[~np.isin(common, first)]


def _windows(
    trace: Trace, frame: pd.DataFrame, steps: npt.NDArray[np.int64], limits: list[Limit]
) -> StepWindows:
    start = frame["start_ns"].to_numpy(np.int64)
    end = start + frame["dur_ns"].to_numpy(np.int64)
    origin = int(start.min()) if len(start) else 0
    shift: dict[int, int] = dict.fromkeys(steps.tolist(), -origin)
    if trace.per_step_clock:
        stride = int((end - origin).max(initial=0)) + 1_000_000_000
        shift = {int(step): position * stride - origin for position, step in enumerate(steps)}
    moved = frame["step"].map(shift).to_numpy(np.int64)
    windows = pd.DataFrame(
        {
            "rank": frame["rank"].astype(np.int64),
            "step": frame["step"].astype(np.int64),
            "start_ns": start + moved,
            "end_ns": end + moved,
            "tokens": frame["tokens"],
        }
    )
    chained = not trace.per_step_clock and len(steps) > 1
    run = _runs(windows, steps) if chained else np.arange(len(steps))
    run_of = windows["step"].map(pd.Series(run, index=steps)).to_numpy(np.int64)
    step_time_ns = _step_time(windows, run_of, len(steps), chained=chained)
    limits = [*limits, *long_steps_limit(windows)]
    if not trace.per_step_clock:
        limits = [*limits, *carried_limits(windows, run_of, step_time_ns=step_time_ns)]
    return StepWindows(
        frame=windows,
        steps=steps,
        ranks=np.unique(windows["rank"].to_numpy()),
        shift_ns=shift,
        default_shift_ns=-origin,
        run=run,
        chained=chained,
        step_time_ns=step_time_ns,
        limits=tuple(limits),
    )


def _step_time(windows: pd.DataFrame, run: IntArray, steps: int, *, chained: bool) -> float:
    if not steps:
        return 0.0
    if chained:
        runs = windows.groupby([windows["rank"], run])
        by_rank = (runs["end_ns"].max() - runs["start_ns"].min()).groupby(level=0).sum()
        return float(by_rank.mean() / steps)
    longest = (windows["end_ns"] - windows["start_ns"]).groupby(windows["step"]).max()
    return float(longest.mean())


def _runs(windows: pd.DataFrame, steps: IntArray) -> IntArray:
    """Return the number of the run of each step: on every rank one begins where the last one ends."""
    shape = (-1, len(steps))
    start, end = (
        windows[name].to_numpy(np.int64).reshape(shape) for name in ("start_ns", "end_ns")
    )
    gap = np.abs(start[:, 1:] - end[:, :-1]).max(axis=0, initial=0)
    follows = (np.diff(steps) == 1) & (gap <= MOST_GAP * float(np.median(end - start)))
    return np.append(0, np.cumsum(~follows))
