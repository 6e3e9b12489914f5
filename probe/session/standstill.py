"""Where a rank stands, noted when a step lasts for long; what comes after may never be recorded.

The ring tells the last collective of a rank that hangs, but not what its program does instead of
the next one. So where a step takes far longer than steps do, the thread that writes looks twice at what
the training thread is in, and notes what it has not left in between in the rank's manifest. While
a run over its budget leaves communication out, the ring does not tell the collective either. Backends
count them by themselves; a count that was the same at both looks is noted too, and so are the operations of
``last_operations``. (Ranks that go on are read at different moments, and would look as if one was behind another.)
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from types import FrameType
from typing import NamedTuple

from ..clock import now_ns
from ..hooks.base import Capture
from ..schema.manifest import STANDSTILL_KEY
from ..schema.records import LEVEL_CODES
from ..schema.terms import CaptureLevel

_MOST_FRAMES = 500
"""A deeper recursion is looked at from its inner end."""
OWN_MODULES = ("meshscope.probe.", "torch._ops")
"""Modules whose frames are left out: between a call of the program and what it calls."""


class Frame(NamedTuple):
    """A function that is being run."""

    function: str
    file: str
    line: int


def stack_of(thread: int) -> tuple[Frame, ...]:
    """Return the functions that a thread is in, the outermost first; none if it has ended.

    Args:
        thread: Its number, as ``threading.get_ident`` gives it.
    """
    frame: FrameType | None = sys._current_frames().get(thread)
    found: list[Frame] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(OWN_MODULES):
            code = frame.f_code
            found.append(Frame(code.co_qualname, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(reversed(found))


def in_both(before: tuple[Frame, ...], now: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the functions that a thread has not left between two looks, the outermost first.

    The innermost of them may have gone on to another line, from which what is within it was called.
    """
    same = 0
    while same < min(len(before), len(now)) and before[same] == now[same]:
        same += 1
    if same < min(len(before), len(now)) and before[same][:2] == now[same][:2]:
        same += 1
    return now[:same]


_GLANCES = 4
"""A look is so many, so that a loop is not seen twice in the same call by chance …"""
_GLANCE_S = 0.003
"""… so far apart."""


def _glances(thread: int) -> tuple[tuple[Frame, ...], bool]:
    """Return the functions that a thread does not leave for a moment, and whether it goes on meanwhile."""
    first = same = stack_of(thread)
    goes_on = False
    for _ in range(_GLANCES - 1):
        time.sleep(_GLANCE_S)
        now = stack_of(thread)
        same, goes_on = in_both(same, now), goes_on or now != first
    return same, goes_on


LOOK_NS = 5_000_000_000
"""So long at least no step has ended before the first look, and so long there is until the next one;
then twice as long each time, so that a long evaluation is no burden to the disk of thousands of ranks."""
LONG_STEPS = 5
"""And so many times as long as steps were …"""
LATEST_NS = 60_000_000_000
"""… but no longer than this: after minutes a watchdog may end the job."""
MOST_FRAMES = 32
"""Functions that are noted; of more, those within."""
_LENGTHS = 9
"""The usual length is the median of so many steps: four pauses among them do not move it."""
WITH_COMMUNICATION = LEVEL_CODES[CaptureLevel.COLLECTIVES]
"""From this level on communication is recorded."""


class _Seen(NamedTuple):
    """What a look saw, or two looks alike."""

    counts: Mapping[str, int] = {}
    stack: tuple[Frame, ...] = ()
    goes_on: bool = False
    """Whether the glances of a look differ."""


class StandstillWatch:
    """Looks now and then at a step that lasts for long, and notes what has not changed."""

    def __init__(
        self,
        capture: Capture,
        counts: Callable[[], Mapping[str, int]],
        note_operations: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            capture: Where notes go.
            counts: Returns how many collectives each group has issued, by its id.
            note_operations: Notes the newest of them; called where neither their number nor the stack changes.
        """
        self._capture = capture
        self._source = capture.source("standstill")
        self._counts = counts
        self._note_operations = note_operations
        self._step: int | None = None
        self._since_ns = self._due_ns = 0
        self._pause_ns = LOOK_NS
        self._lengths_ns: deque[float] = deque(maxlen=_LENGTHS)
        self._last: _Seen | None = None
        self._noted: _Seen | None = None
        self._counted: Mapping[str, int] = {}

    def look(self) -> None:
        """Look if it is time; called every now and then by a thread that may touch files."""
        time_ns = now_ns()
        if self._capture.recorder.step != self._step:
            self._begin(self._capture.recorder.step, time_ns)
        if time_ns < self._due_ns or not self._source.on:
            return
        self._due_ns = time_ns + self._pause_ns
        self._pause_ns *= 2
        try:
            before, self._last = self._last, self._see()
            if before is not None:
                self._note(before, self._last, time_ns)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)

    def _begin(self, step: int, time_ns: int) -> None:
        if self._step is not None and step > self._step:
            self._lengths_ns.append((time_ns - self._since_ns) / (step - self._step))
        self._step, self._since_ns, self._last, self._noted = step, time_ns, None, None
        self._counted = {}
        usual_ns = median(self._lengths_ns) if self._lengths_ns else 0
        self._pause_ns = LOOK_NS
        self._due_ns = time_ns + min(max(LOOK_NS, round(LONG_STEPS * usual_ns)), LATEST_NS)

    def _see(self) -> _Seen:
        capture = self._capture
        thread = capture.step_thread or threading.main_thread().ident
        counts = {} if capture.level >= WITH_COMMUNICATION else self._counts()
        return _Seen(dict(counts), *((), False) if thread is None else _glances(thread))

    def _note(self, before: _Seen, now: _Seen, time_ns: int) -> None:
        """Note what two looks saw alike, unless that is noted already."""
        counts = now.counts if now.counts == before.counts else {}
        goes_on = before.goes_on or now.goes_on or before.stack != now.stack
        standing = _Seen(counts, in_both(before.stack, now.stack)[-MOST_FRAMES:], goes_on)
        if standing == self._noted:
            return
        # To read them takes 0.1 s under the interpreter lock: not in a long evaluation that goes on.
        if not goes_on and standing.counts not in ({}, self._counted):
            self._counted = standing.counts
            self._note_operations()
        self._noted = standing
        recorder = self._capture.recorder
        recorder.annotate(
            STANDSTILL_KEY,
            {
                "time_ns": time_ns,
                "collectives": dict(standing.counts),
                "stack": [list(frame) for frame in reversed(standing.stack)],
                "goes_on": goes_on,
            },
        )
        recorder.publish()
