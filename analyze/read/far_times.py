"""Events of one file that lie, or reach, where nothing else of it is: no clock that works says so.

A profiler records for a time and stops, so all that it saw lies together. A start of zero, an end
that was never written, or another unit puts an event days away; sums that contain it are wrong.

Five events, two of which are left out::

    starts of a file     0 s   1 s   2 s   3 s          together: 0 to 3 s
    kernel at 1 s        208 days long                  reaches a day and more beyond: left out
    kernel at 1970       2 ms long                      lies a day and more before: left out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.printable import printable

from ..wording.limits import Limit
from ..wording.message import message

IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_HOUR_NS = 3_600_000_000_000
_DAY_HOURS = 24
_DAY_NS = _DAY_HOURS * _HOUR_NS
_LEAST_LONG_NS = 1_000_000_000
"""Shorter events are not doubted for their length."""
_TIMES_THE_REST = 2
"""An event this much longer than all starts of a file are apart has to fit those around it."""
_NAME_CHARACTERS = 60


class Window(NamedTuple):
    """From the first to the last start of the events that lie together, ns."""

    first: int
    last: int

    def are_far(self, start: IntArray, dur: IntArray) -> Mask:
        """Return which events begin, or end, a day or more outside."""
        reached = start + np.maximum(dur, 0)
        apart: Mask = (start < self.first - _DAY_NS) | (reached > self.last + _DAY_NS)
        return apart

    def are_long(self, dur: IntArray) -> Mask:
        """Return which events are longer than all that lies together."""
        found: Mask = dur > max(_TIMES_THE_REST * (self.last - self.first), _LEAST_LONG_NS)
        return found

    def distance(self, start: IntArray, dur: IntArray) -> int:
        """Return how far the farthest of some events lies, or reaches, outside."""
        if not len(start):
            return 0
        return max(
            self.first - int(start.min()), int((start + np.maximum(dur, 0)).max()) - self.last
        )


class Extents:
    """Collects where the events of a file lie, part by part, by the hour."""

    def __init__(self) -> None:
        self._count: Counter[int] = Counter()
        self._bounds: dict[int, tuple[int, int]] = {}
        self._end = np.iinfo(np.int64).min
        self._longest = 0

    def add(self, start: IntArray, dur: IntArray) -> None:
        """Take some more events, ns."""
        if not len(start):
            return
        low, high = int(start.min()), int(start.max())
        self._end = max(self._end, int((start + dur).max()))
        self._longest = max(self._longest, int(dur.max()))
        if low // _HOUR_NS == high // _HOUR_NS:
            self._add_hour(low // _HOUR_NS, len(start), low, high)
            return
        hours = start // _HOUR_NS
        for hour in np.unique(hours).tolist():
            own = start[hours == hour]
            self._add_hour(hour, len(own), int(own.min()), int(own.max()))

    def _add_hour(self, hour: int, count: int, low: int, high: int) -> None:
        known = self._bounds.get(hour, (low, high))
        self._count[hour] += count
        self._bounds[hour] = min(low, known[0]), max(high, known[1])

    def window(self) -> Window | None:
        """Return where most events begin, with less than a day between neighbours; None without any event."""
        best, most = None, 0
        together: list[int] = []
        hours = sorted(self._count)
        for hour, following in zip_longest(hours, hours[1:]):
            together.append(hour)
            if following is not None and following - hour <= _DAY_HOURS:
                continue
            events = sum(self._count[one] for one in together)
            if events > most:
                bounds = self._bounds[together[0]][0], self._bounds[together[-1]][1]
                best, most = Window(*bounds), events
            together = []
        return best

    def doubtful_window(self) -> Window | None:
        """Return the window where any event lies far outside of it, or is longer than all of it; else None."""
        window = self.window()
        if window is None:
            return None
        earliest = min(low for low, _ in self._bounds.values())
        ends = np.array([self._end - earliest])
        is_far = window.are_far(np.array([earliest]), ends)[0]
        return window if is_far or window.are_long(np.array([self._longest]))[0] else None


def are_overrun(start: IntArray, dur: IntArray, stream: IntArray, long: Mask) -> Mask:
    """Return the long events within which others of their stream begin: it does one after the other."""
    found = np.zeros(len(start), dtype=bool)
    for place in np.flatnonzero(long).tolist():
        begun = start[stream == stream[place]]
        within = (begun > start[place]) & (begun < start[place] + dur[place])
        found[place] = bool(within.any())
    return found


def most_at_once(start: IntArray, dur: IntArray, stream: IntArray) -> int:
    """Return how many events ran at once on average in the stream that is busiest; 0 without any."""
    if not len(start):
        return 0
    streams, place = np.unique(stream, return_inverse=True)
    total = np.bincount(place, weights=dur.astype(np.float64))
    first = np.full(len(streams), np.iinfo(np.int64).max)
    last = np.full(len(streams), np.iinfo(np.int64).min)
    np.minimum.at(first, place, start)
    np.maximum.at(last, place, start + dur)
    at_once = total / np.maximum(last - first, 1)
    return round(float(at_once.max()))


class LeftOut:
    """Counts the events that are left out, with the worst of them.

    Args:
        window: Where the others are.
        names: The texts of the codes that name events.
    """

    def __init__(self, window: Window, names: Sequence[str]) -> None:
        self._window = window
        self._names = names
        self._count = {"far": 0, "overlong": 0}
        self._worst: dict[str, tuple[int, int]] = {}

    def count(
        self, start: IntArray, dur: IntArray, name: IntArray, *, far: Mask, long: Mask
    ) -> None:
        """Take some events: which lie or reach too far, and which cannot be so long."""
        reached = np.maximum(self._window.first - start, start + dur - self._window.last)
        for kind, mask, size in (("far", far, reached), ("overlong", long, dur)):
            if mask.any():
                worst = int(np.argmax(np.where(mask, size, 0)))
                self._count[kind] += int(mask.sum())
                found = int(size[worst]), int(name[worst])
                self._worst[kind] = max(found, self._worst.get(kind, found))

    def limits(self) -> list[Limit]:
        """Return what is said of them."""
        found: list[Limit] = []
        if self._count["far"]:
            apart_ns, name = self._worst["far"]
            known = {"count": self._count["far"], "apart_ns": apart_ns, "name": self._name(name)}
            found.append(message("missing.far_events", **known))
        if self._count["overlong"]:
            dur_ns, name = self._worst["overlong"]
            known = {"count": self._count["overlong"], "dur_ns": dur_ns, "name": self._name(name)}
            found.append(message("missing.overlong_events", **known))
        return found

    def _name(self, code: int) -> str:
        return printable(self._names[code][:_NAME_CHARACTERS])
