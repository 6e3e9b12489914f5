"""What of the steps of a run is drawn: all rows of most runs, the shown rows of large ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from meshscope.analyze import Trace
from meshscope.analyze.align.steps.whole_capture import WHOLE_CAPTURE
from meshscope.analyze.output.timeline.slices import (
    StepSlices,
    of_ranks,
    step_outline,
    step_slices,
)
from meshscope.analyze.tables.unused_memory import release_unused

Key = TypeVar("Key")
Value = TypeVar("Value")

MOST_ROWS = 640
"""Rows that the figure of a step has a pixel for."""
_KEPT_STEPS = 4
"""Going back and forth between neighbours stays fast."""


class DrawnSteps:
    """The drawable content of the last few steps; zooms repeat it.

    Of more ranks than there are pixels only those are made that a view shows: of 16,384 ranks the
    slices of all take ten seconds and gigabytes.
    """

    def __init__(self, trace: Trace) -> None:
        """Hold nothing yet."""
        self._trace = trace
        # Who comes while a step is made waits for it: two at once would take twice as long.
        self._making = threading.RLock()
        self._whole: dict[int, StepSlices] = {}
        self._outlines: dict[int, StepSlices] = {}
        self._parts: dict[tuple[int, tuple[int, ...]], StepSlices] = {}

    def whole(self, step: int) -> StepSlices:
        """Return a step with the slices of all ranks."""
        return self._kept(self._whole, step, lambda: step_slices(self._trace, step))

    def outline(self, step: int) -> StepSlices:
        """Return a step with all its rows; its slices may be missing."""
        if self._is_whole(step):
            return self.whole(step)
        return self._kept(self._outlines, step, lambda: step_outline(self._trace, step))

    def of(self, step: int, ranks: tuple[int, ...]) -> StepSlices:
        """Return a step with the rows and slices of some of its ranks, in the order of its rows."""
        if self._is_whole(step):
            whole = self.whole(step)
            return whole if ranks == whole.ranks else of_ranks(whole, ranks, ())
        return self._kept(self._parts, (step, ranks), lambda: step_slices(self._trace, step, ranks))

    def _kept(
        self, kept: dict[Key, StepSlices], key: Key, make: Callable[[], StepSlices]
    ) -> StepSlices:
        with self._making:
            found = kept.get(key)
            if found is None:
                found = make()
                keep_few(kept, key, found)
            return found

    def _is_whole(self, step: int) -> bool:
        return step == WHOLE_CAPTURE or len(self._trace.ranks) <= MOST_ROWS


def keep_few(kept: dict[Key, Value], key: Key, value: Value) -> None:
    """Keep the value of one more step, and drop the oldest beyond the last few."""
    for oldest in list(kept)[: 1 - _KEPT_STEPS]:
        kept.pop(oldest, None)
    kept[key] = value
    release_unused()
