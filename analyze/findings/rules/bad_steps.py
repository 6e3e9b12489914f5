"""Which of the analysed steps carry a cause, in words and as a place.

A stall in one step and a little of it in every step cost the same on average, and have
different remedies.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.printable import MOST_LISTED

from ...align.steps.windows import WHOLE_CAPTURE, StepWindows
from ...explain.causes.without_peers import MIN_GAP
from ...tables.results import Where
from ...wording.message import Message, message
from .grading import MIN_COST

MOST_LEFT = 0.5
"""Most of a cause that the steps which are not named may hold, whatever it costs."""

NEARLY_EVERYWHERE = 0.85
"""From this share of the steps on a cause is in all of them, wherever the others lie."""
MIN_FREE_END = 2
"""Unless so many lie at one end, before a cause begins or after it has ended."""

NEARLY_ALL, ALL = 0.9, 0.995
"""From these shares on a claim says so; in percent without decimals the latter is 100."""


class BadSteps(msgspec.Struct, frozen=True):
    """Some of the analysed steps."""

    steps: tuple[int, ...]
    """Rising; not empty."""
    analysed: tuple[int, ...]
    held_frac: float = 1.0
    """What of the cause they hold."""

    @property
    def are_all(self) -> bool:
        """Return whether these are all that was analysed."""
        return len(self.steps) == len(self.analysed)

    @property
    def where(self) -> Where:
        """Return the range as a place; nothing in a capture without step marks."""
        if self.analysed == (WHOLE_CAPTURE,):
            return {}
        return {"steps": [self.steps[0], self.steps[-1]]}

    @property
    def part(self) -> Message | None:
        """Return which part of a cause these steps hold, and when; None where they are all."""
        if self.are_all:
            return None
        if self.held_frac >= ALL:
            return message("steps.all_of_it", when=self.message)
        if self.held_frac >= NEARLY_ALL:
            return message("steps.nearly_all_of_it", when=self.message)
        return message("steps.most_of_it", when=self.message)

    @property
    def longest_break(self) -> int:
        """Return the most analysed steps between two of these."""
        place = np.searchsorted(self.analysed, self.steps)
        return int(np.diff(place).max(initial=1)) - 1

    @property
    def has_ended(self) -> bool:
        """Return whether the analysed steps after the last of these are more than any break between them."""
        after = len(self.analysed) - 1 - self.analysed.index(self.steps[-1])
        return after > self.longest_break

    @property
    def message(self) -> Message:
        """Return when: ``in step 5``, ``in steps 3, 9 and 12-15``, ``in every 10th step``."""
        if self.analysed == (WHOLE_CAPTURE,):
            return message("steps.whole_capture")
        if self.are_all:
            return message("steps.all") if len(self.steps) > 1 else message("steps.only_one")
        first, last = self.steps[0], self.steps[-1]
        stride = self._stride()
        if stride is not None:
            return message("steps.regular", nth=_ordinal(stride), first=first, last=last)
        runs = [(run[0], run[-1]) for run in self.runs]
        if len(runs) > MOST_LISTED:
            many = {"bad": len(self.steps), "analysed": len(self.analysed)}
            return message("steps.many", first=first, last=last, **many)
        return message("steps.runs", runs=runs)

    @property
    def runs(self) -> list[list[int]]:
        """Return the steps as runs without an analysed step between; two are no run."""
        place = np.searchsorted(self.analysed, self.steps)
        parts = np.split(np.array(self.steps), np.flatnonzero(np.diff(place) > 1) + 1)
        runs: list[list[int]] = []
        for part in map(np.ndarray.tolist, parts):
            runs += [part] if len(part) > 2 else [[step] for step in part]
        return runs

    def _stride(self) -> int | None:
        """Return how far apart the steps are, if they come regularly through all of the run."""
        apart = np.unique(np.diff(self.steps))
        is_gapless = len(self.analysed) == self.analysed[-1] - self.analysed[0] + 1
        if len(self.steps) < 3 or len(apart) > 1 or apart[0] < 2 or not is_gapless:
            return None
        stride = int(apart[0])
        starts = self.steps[0] - stride < self.analysed[0]
        return stride if starts and self.steps[-1] + stride > self.analysed[-1] else None


def per_step(windows: StepWindows) -> Message:
    """Return to what a time belongs: a step, or the whole capture where it has no step marks."""
    return message("steps.each") if windows.has_marks else message("steps.whole_capture")


def all_steps(windows: StepWindows) -> BadSteps:
    """Return all analysed steps."""
    steps = tuple(windows.steps.tolist())
    return BadSteps(steps, steps)


def bad_steps(
    windows: StepWindows,
    cost_ns: pd.Series,
    cost_frac: float | None,
    least_frac: float = MIN_COST,
) -> BadSteps:
    """Return the steps that carry a cause.

    They are set apart from the others by a gap: each costs at least ``MIN_GAP`` times what
    any other does. What is left in the others is not worth a finding of its own, and at
    most ``MOST_LEFT`` of the cause. Where no gap is like that, all steps carry it.

    Args:
        windows: The analysed steps.
        cost_ns: What the cause costs, by step; in a step that is not there, nothing.
        cost_frac: What it costs over all steps, as a share of the step; None if not known.
        least_frac: From which cost on it is worth a finding.

    ==== ======= ================================
    step cost_ns carries 10 % of the step?
    ==== ======= ================================
    0       0.4  no: all like it hold 4 % of the cause
    1      20.0  yes: 20.0 / 0.4 is a gap
    2       0.5  no
    ==== ======= ================================
    """
    cost = cost_ns.reindex(windows.steps, fill_value=0.0).clip(lower=0.0).to_numpy(np.float64)
    total, count = float(cost.sum()), len(cost)
    if count < 2 or total <= 0:
        return all_steps(windows)
    left = min(MOST_LEFT, least_frac / cost_frac) if cost_frac else MOST_LEFT
    ranked = np.sort(cost)[::-1]
    # So little in a step is nothing: if all had it, it would be what may be left.
    seen = np.maximum(ranked, left * total / count)
    gaps = seen[:-1] / seen[1:]
    rest = 1.0 - np.cumsum(ranked)[:-1] / total
    gaps[rest > left] = 0.0
    widest = int(gaps.argmax())
    if gaps[widest] < MIN_GAP:
        return all_steps(windows)
    is_bad = cost >= ranked[widest]
    if _is_nearly_everywhere(is_bad):
        return all_steps(windows)
    steps, bad = windows.steps.tolist(), windows.steps[is_bad].tolist()
    return BadSteps(tuple(bad), tuple(steps), float(cost[is_bad].sum()) / total)


def _is_nearly_everywhere(is_bad: npt.NDArray[np.bool_]) -> bool:
    """Return whether only a few scattered steps happen to be free: that tells no time of a cause.

    A cause that began late, or ended early, leaves all steps of one end free.
    """
    if is_bad.mean() < NEARLY_EVERYWHERE:
        return False
    found = np.flatnonzero(is_bad)
    return bool(max(found[0], len(is_bad) - 1 - found[-1]) < MIN_FREE_END)


def _ordinal(number: int) -> str:
    """Return ``2nd``, ``3rd``, ``10th``, ``11th``."""
    teen = number % 100 // 10 == 1
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
