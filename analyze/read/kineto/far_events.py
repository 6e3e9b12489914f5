"""Events of a Kineto file that lie, or reach, where nothing else of it is: left out, or the file is refused.

CUPTI and the libraries like it give stamps of 0 and ends before starts now and then, and tools that
rewrite traces mix units. Kineto leaves out what lies outside of its window; other writers do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from msgspec.structs import replace

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.limits import Limit
from ...wording.message import message
from ..far_times import IntArray, LeftOut, Mask, Window, are_overrun, most_at_once
from .event_columns import Events, RoledEvents, SpilledEvents
from .stamps import EXPORT_AGAIN

_MOST_FAR_FRAC = 0.5
"""Share of the events of the device, or of the host, above which it had another clock or unit."""
_MOST_AT_ONCE = 50
"""Events that no stream runs at once: their lengths are in another unit than their starts."""

_IsLong = Callable[[Events, Mask], Mask]
"""Returns which of the long events cannot be so long."""


def without_far_events(roles: RoledEvents, where: str) -> tuple[RoledEvents, list[Limit]]:
    """Return the events without those that no clock can have shown, and what is said of those.

    Left out is what begins or ends a day or more from where the others begin. What is longer than
    all that is doubted: on the device where later work of its stream begins within, on the host where
    it outlasts an annotation of its thread that it began in.

    Raises:
        TraceFormatError: Most events of the host, or of the device, are far from the others, or a
            stream of the device is many times as busy as it can be.
    """
    at_once = most_at_once(roles.device.start, roles.device.dur, _streams(roles.device))
    if at_once > _MOST_AT_ONCE:
        raise TraceFormatError(
            message("refused.too_many_at_once", at_once=at_once), where=where, remedy=EXPORT_AGAIN
        )
    window = roles.doubtful
    if window is None:
        return roles, []
    host = (roles.operator.parts(), roles.launch.parts(), (roles.host_note,))
    for parts in ([roles.device], (part for one in host for part in one)):
        _refuse_other_clock(parts, window, where)
    left_out = LeftOut(window, roles.names)
    near = roles.host_note.at(np.flatnonzero(~_far(roles.host_note, window)))

    def outlast(part: Events, long: Mask) -> Mask:
        return _outlast(part, long, near)

    def kept(events: Events, is_long: _IsLong) -> Mask:
        return _kept(events, window, is_long, left_out)

    of_device = kept(roles.device, _overrun)
    place = np.cumsum(of_device) - 1
    changed = replace(
        roles,
        device=roles.device.at(np.flatnonzero(of_device)),
        communication={
            int(place[at]): args for at, args in roles.communication.items() if of_device[at]
        },
        device_note=roles.device_note.at(np.flatnonzero(kept(roles.device_note, _never))),
        host_note=roles.host_note.at(np.flatnonzero(kept(roles.host_note, outlast))),
        overhead=roles.overhead.at(np.flatnonzero(kept(roles.overhead, _never))),
        python=roles.python.at(np.flatnonzero(kept(roles.python, outlast))),
        launch=_filtered(roles.launch, window, outlast, left_out),
        operator=_filtered(roles.operator, window, outlast, left_out),
    )
    return changed, left_out.limits()


def _filtered(
    events: SpilledEvents, window: Window, is_long: _IsLong, left_out: LeftOut
) -> SpilledEvents:
    for part in events.parts():
        _kept(part, window, is_long, left_out)
    uncounted = LeftOut(window, ())
    return replace(events, is_possible=lambda part: _kept(part, window, is_long, uncounted))


def _kept(events: Events, window: Window, is_long: _IsLong, left_out: LeftOut) -> Mask:
    """Return which events can be true; the others are counted."""
    far = _far(events, window)
    long = window.are_long(events.dur) & ~far
    long = is_long(events, long) if long.any() else long
    left_out.count(events.start, events.dur, events.name, far=far, long=long)
    return ~(far | long)


def _far(events: Events, window: Window) -> Mask:
    return window.are_far(events.start, events.dur)


def _never(_: Events, long: Mask) -> Mask:
    return np.zeros_like(long)


def _overrun(device: Events, long: Mask) -> Mask:
    return are_overrun(device.start, device.dur, _streams(device), long)


def _streams(device: Events) -> IntArray:
    """Return one number for each pair of device and stream."""
    streams, place = np.unique(device.stream, return_inverse=True)
    codes: IntArray = device.device * len(streams) + place
    return codes


def _outlast(events: Events, long: Mask, notes: Events) -> Mask:
    """Return which of the long events begin inside an annotation of their thread and end behind it."""
    found = np.zeros_like(long)
    end: IntArray = notes.time.end
    for place in np.flatnonzero(long).tolist():
        start = events.start[place]
        around = (notes.thread == events.thread[place]) & (notes.start < start) & (start < end)
        found[place] = bool((around & (end < start + events.dur[place])).any())
    return found


def _refuse_other_clock(parts: Iterable[Events], window: Window, where: str) -> None:
    count, far, apart_ns = 0, 0, 0
    for part in parts:
        mask = _far(part, window)
        count += len(part)
        far += int(mask.sum())
        apart_ns = max(apart_ns, window.distance(part.start[mask], part.dur[mask]))
    if far > count * _MOST_FAR_FRAC:
        raise TraceFormatError(
            message("refused.two_clocks", events=far, apart_ns=apart_ns),
            where=where,
            remedy=EXPORT_AGAIN,
        )
