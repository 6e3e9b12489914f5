"""Where a thread of the program is: its Python frames, read by another thread of the process."""

from __future__ import annotations

import sys
from types import FrameType
from typing import NamedTuple

_MOST_FRAMES = 500
"""A deeper recursion is looked at from its inner end."""
_OWN = ("meshscope.probe.", "torch._ops")
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
        if not module.startswith(_OWN):
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
