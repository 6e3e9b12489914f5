"""The end of a window of a profiler, where the host launched work that is no longer recorded.

A profiler that stops while the device lags behind drops what ends after its window. What is missing there is
not time in which the device had nothing to do::

    host      step 1   step 2   step 3 |
    recorded     step 1       step 2   |  step 3 is launched and not recorded
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from msgspec.structs import replace

from meshscope.probe.schema.printable import listed

from ...wording.limits import Limit
from ...wording.message import message
from .columns import NO_STEP, StepWindows
from .cut_files import LAUNCHES
from .event_columns import Events, IntArray, RoledEvents

_LEAST = 5
"""Launches without device work at the end that are no accident."""
_MOST_LOST_FRAC = 0.05
"""Share of the launches of a step that it may lack and still count."""
_BEFORE_NS = 1_000_000_000
"""How long before its first launch a capture begins at most."""
_CAPTURE = re.compile(r"(?:cuda|cu|hip)\w*StreamBeginCapture", re.IGNORECASE)


class LostTail(msgspec.Struct, frozen=True):
    """Launches at the end of a file, after the last one whose device work is recorded."""

    launches: int
    steps: IntArray
    """Numbers of the steps that lack so much of their work that they say nothing."""
    end_ns: int
    """Last end of recorded device work."""


def lost_tail(roles: RoledEvents, steps: StepWindows) -> LostTail | None:
    """Return the launches at the end whose work is not recorded; None where they are few.

    While a graph is captured, launches start no work.

    Args:
        roles: The events of a rank.
        steps: Its steps on the host.
    """
    launching = np.array(sorted(roles.names_like(LAUNCHES)), dtype=np.int64)
    if not len(launching) or not len(roles.device):
        return None
    found = roles.launch.select(lambda part: np.isin(part.name, launching)).events
    is_done = np.isin(found.correlation, np.unique(roles.device.correlation))
    if not is_done.any():
        return None
    lost = np.sort(found.start[found.start > found.start[is_done].max()])
    if len(lost) < _LEAST or _captures(roles, int(lost[0])):
        return None
    number, count = np.unique(steps.step_of(lost), return_counts=True)
    every = np.sort(steps.step_of(found.start))
    of_step = np.searchsorted(every, number, "right") - np.searchsorted(every, number, "left")
    hit = number[(count > _MOST_LOST_FRAC * of_step) & (number != NO_STEP)]
    return LostTail(len(lost), hit, int(roles.device.time.end.max()))


def _captures(roles: RoledEvents, since_ns: int) -> bool:
    codes = np.array(sorted(roles.names_like(_CAPTURE)), dtype=np.int64)

    def is_late(part: Events) -> np.ndarray:
        # The capture begins before its first launch.
        return np.isin(part.name, codes) & (part.time.end > since_ns - _BEFORE_NS)

    return bool(len(codes)) and len(roles.launch.select(is_late).events) > 0


def without_lost_tail(
    windows: StepWindows, tail: LostTail | None
) -> tuple[StepWindows, list[Limit]]:
    """Return the steps that are recorded to their end, and what is said of the others.

    Where no step is, what is recorded of the first one stays. A file that is one step ends with its device.

    Args:
        windows: The steps of the device.
        tail: What is lost.
    """
    if tail is None:
        return windows, []
    count = tail.launches
    if windows.is_whole_file:
        end = np.clip(windows.end, windows.start, tail.end_ns)
        return replace(windows, end=end), [message("missing.device_tail", launches=count)]
    kept = ~np.isin(windows.number, tail.steps)
    if not kept.any():
        end = np.maximum(windows.start[:1], tail.end_ns)
        part = replace(windows, number=windows.number[:1], start=windows.start[:1], end=end)
        said = message("doubt.part_of_a_step", launches=count, step=int(windows.number[0]))
        return part, [said]
    if kept.all():
        return windows, [message("missing.device_tail", launches=count)]
    steps = listed(windows.number[~kept].tolist(), most=16)
    columns = {name: getattr(windows, name)[kept] for name in ("number", "start", "end")}
    said = message("missing.steps_without_device_tail", launches=count, steps=steps)
    return replace(windows, **columns), [said]
