"""A device whose clock is ahead of the host's, or behind it: its times are moved.

Two facts bound by how much it is ahead:

======== ===========================================================================================
at least a call that waits for the device returns after the work launched before it ends
at most  no work begins before its launch: the shortest delay of all
======== ===========================================================================================

A long queue delays all work, too. But work that finds the device idle begins some microseconds after its launch:
where most of such work is late by the shortest delay, that is the clock.

A clock that is behind lets work begin before its launch, by the shortest delay at least. It is moved by that where
either fact agrees: a clock that drifts, or events that were joined wrongly, contradict themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from meshscope.probe.schema.terms import KernelCategory

from ...tables.arrays import BoolArray
from ...tables.early_work import LEAST_EVENTS, early_events
from ...wording.limits import Limit
from ...wording.message import message
from .columns import DeviceLinks
from .event_columns import CATEGORIES, Events, IntArray, RoledEvents

_LEAST_NS = 200_000
"""No launch to an idle device takes so long, and no match of two clocks is so rough."""
_LEAST_BY_DELAY_NS = 1_000_000
"""The same where no call waits for the device."""
_ALIKE_NS = 50_000
"""Launches to an idle device take 5 to 20 us: their delays differ by less."""
_WAITS_FOR_ALL = re.compile(r"(?:cuda|hip)DeviceSynchronize|cuCtxSynchronize", re.IGNORECASE)
_WAITS_FOR_ONE = re.compile(r"(?:cuda|hip|cu)StreamSynchronize", re.IGNORECASE)
_SYNC = CATEGORIES.index(KernelCategory.SYNC)
_NEVER = np.iinfo(np.int64).min


def with_clock_of_host(
    roles: RoledEvents, links: DeviceLinks
) -> tuple[RoledEvents, tuple[Limit, ...]]:
    """Return the events with the times of the device moved by what its clock is off, and a note of it."""
    ahead = _ahead_ns(roles, links)
    if not ahead:
        return roles, ()
    said = message("assumed.device_clock_moved", ahead_ns=ahead)
    if ahead < 0:
        said = message("assumed.device_clock_moved_on", behind_ns=-ahead)
    device, note = roles.device, roles.device_note
    moved = replace(
        roles,
        device=replace(device, start=device.start - np.where(device.category == _SYNC, 0, ahead)),
        device_note=replace(note, start=note.start - ahead),
    )
    return moved, (said,)


def _ahead_ns(roles: RoledEvents, links: DeviceLinks) -> int:
    """Return by how much the clock of the device is ahead, ns, negative if behind; 0 where nothing shows it."""
    linked = np.flatnonzero(links.is_linked & (roles.device.category != _SYNC))
    if len(linked) < LEAST_EVENTS:
        return 0
    launch = links.launch[linked]
    delay = roles.device.start[linked] - launch
    most = int(delay.min())
    work = roles.device.at(linked)
    if early_events(delay) or most <= -_LEAST_NS:
        return most if _is_behind(roles, work, launch, delay) else 0
    if most < _LEAST_NS:
        return 0
    if most >= _LEAST_BY_DELAY_NS and _is_alike_when_idle(work, delay):
        return most
    least = max(_left_by_waits(roles, work, launch), default=_NEVER)
    return min(least, most) if _LEAST_NS <= least <= most + _ALIKE_NS else 0


def _is_behind(roles: RoledEvents, work: Events, launch: IntArray, delay: IntArray) -> bool:
    """Return whether launches or waits of the host agree that the clock is behind by the shortest delay.

    Behind a queue only the first work after idle time begins early: so little counts if the waits say the same.
    """
    are_many = bool(early_events(delay))
    if are_many and _is_alike_when_idle(work, delay):
        return True
    spare = int(delay.min()) - max(_left_by_waits(roles, work, launch), default=_NEVER)
    return spare >= -_ALIKE_NS and (spare <= _ALIKE_NS or (are_many and spare < -_NEVER // 2))


def _is_alike_when_idle(work: Events, delay: IntArray) -> bool:
    """Return whether most work that ends idle time of the device begins as late as the earliest."""
    order = np.argsort(work.start, kind="stable")
    busy_until = np.maximum.accumulate(work.time.end[order])
    ends_gap = work.start[order][1:] - busy_until[:-1] >= _ALIKE_NS
    found = delay[order][1:][ends_gap]
    return len(found) >= LEAST_EVENTS and bool(np.median(found) <= delay.min() + _ALIKE_NS)


def _left_by_waits(roles: RoledEvents, work: Events, launch: IntArray) -> Iterator[int]:
    """Yield by how much work ends after a call that waited for it, ns, the most of each kind of call.

    Each stream counts with what the thread of the call launched before: a call that waits for one stream, nobody
    knows which, shows that the one that is done first is done.
    """
    thread = _thread_of_launch(roles, work)
    on_stream = [work.stream == stream for stream in np.unique(work.stream)]
    kinds: list[tuple[re.Pattern[str], np.ufunc]] = [(_WAITS_FOR_ONE, np.minimum)]
    if len(np.unique(work.device)) == 1:
        kinds.append((_WAITS_FOR_ALL, np.maximum))
    for pattern, of_streams in kinds:
        waits = _calls(roles, pattern)
        for own in np.unique(waits.thread):
            calls = waits.at(np.flatnonzero(waits.thread == own))
            ends = [
                _end_before(calls, launch, work, is_on & (thread == own)) for is_on in on_stream
            ]
            end = of_streams.reduce(ends)
            known = end != _NEVER
            if known.any():
                yield int((end - calls.time.end)[known].max())


def _calls(roles: RoledEvents, pattern: re.Pattern[str]) -> Events:
    codes = np.array(sorted(roles.names_like(pattern)), dtype=np.int64)
    return roles.launch.select(lambda part: np.isin(part.name, codes)).events


def _thread_of_launch(roles: RoledEvents, work: Events) -> IntArray:
    """Return the thread that launched each activity."""
    calls = roles.launch.select(lambda part: np.isin(part.correlation, work.correlation)).events
    order = np.argsort(calls.correlation, kind="stable")
    at = np.searchsorted(calls.correlation[order], work.correlation)
    return calls.thread[order][at]


def _end_before(calls: Events, launch: IntArray, work: Events, chosen: BoolArray) -> IntArray:
    """Return the last end of the chosen work that was launched before each call; ``_NEVER`` of none."""
    order = np.flatnonzero(chosen)[np.argsort(launch[chosen], kind="stable")]
    last = np.append(_NEVER, np.maximum.accumulate(work.time.end[order]))
    return np.asarray(last[np.searchsorted(launch[order], calls.start, side="left")])
