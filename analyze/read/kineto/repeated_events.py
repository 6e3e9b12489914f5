"""Events that a Kineto file holds twice: counted once, with a word.

Tools that join or filter traces write some events again, or all of them. A stream runs one activity at a time,
and a call has a number of its own, so two that agree in all of this are one::

    stream  start  dur  name           stream  start  dur  name
    7        10     5   gemm           7        10     5   gemm
    7        10     5   gemm     ->    7        20     5   gemm
    7        20     5   gemm

Operators and annotations that nest may agree by chance; they are looked at only where other events are repeated, and
left out only where many of them are.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from meshscope.probe.schema.terms import KernelCategory

from ...wording.limits import Limit
from ...wording.message import message
from .event_columns import CATEGORIES, Events, IntArray, RoledEvents, SpilledEvents

_Mask = npt.NDArray[np.bool_]
_HOST = ("start", "dur", "name", "thread")
_CALL = (*_HOST, "correlation")
_DEVICE = ("start", "dur", "name", "device", "stream", "category")
_LEAST_FRAC = 0.05
"""Share of the operators, or of the annotations, that may agree by chance."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SYNC = CATEGORIES.index(KernelCategory.SYNC)


def without_repeated_events(roles: RoledEvents) -> tuple[RoledEvents, list[Limit]]:
    """Return the events, each once, and what is said of the others.

    Rows of synchronisation stay: several may wait on one stream at once.
    """
    device = roles.device
    works = (device.dur > 0) & (device.category != _SYNC)
    again = works & _repeated(_keys(device, _DEVICE))
    note = _many(_repeated(_keys(roles.host_note, _HOST)))
    if not again.any() and not note.any():
        return roles, []
    launch = _repeated_places(roles.launch, _CALL, least_frac=0.0)
    operator = _repeated_places(roles.operator, _HOST, least_frac=_LEAST_FRAC)
    python = _many(_repeated(_keys(roles.python, _HOST)))
    device_note = _many(_repeated(_keys(roles.device_note, ("start", "dur", "name", "device"))))
    place = np.cumsum(~again) - 1
    changed = replace(
        roles,
        device=device.at(np.flatnonzero(~again)),
        communication={
            int(place[at]): args for at, args in roles.communication.items() if not again[at]
        },
        launch=_without(roles.launch, launch),
        operator=_without(roles.operator, operator),
        host_note=roles.host_note.at(np.flatnonzero(~note)),
        device_note=roles.device_note.at(np.flatnonzero(~device_note)),
        python=roles.python.at(np.flatnonzero(~python)),
    )
    count = int(again.sum() + note.sum() + python.sum() + device_note.sum())
    return changed, [message("assumed.repeated_events", count=count + len(launch) + len(operator))]


def _keys(events: Events, columns: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return a number for each event, which two share if all their columns agree."""
    keys = np.zeros(len(events), dtype=np.uint64)
    for name in columns:
        values = getattr(events, name)
        if len(values):
            keys = (keys ^ (keys >> np.uint64(29)) ^ values.astype(np.uint64)) * _MIX
    return keys


def _repeated(keys: npt.NDArray[np.uint64]) -> _Mask:
    """Return which keys are those of an earlier event."""
    order = np.argsort(keys, kind="stable")
    found = np.zeros(len(keys), dtype=np.bool_)
    found[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return found


def _many(again: _Mask) -> _Mask:
    """Return the mask, empty where so few may agree by chance."""
    return again if again.sum() >= _LEAST_FRAC * len(again) else np.zeros_like(again)


def _repeated_places(
    events: SpilledEvents, columns: tuple[str, ...], *, least_frac: float
) -> IntArray:
    """Return the places in the file of the events that are repeated; memory holds 12 bytes for each event."""
    parts = [(_keys(part, columns), part.position) for part in events.parts()]
    if not parts:
        return np.empty(0, dtype=np.int64)
    keys, position = (np.concatenate(column) for column in zip(*parts, strict=True))
    found = np.sort(position[_repeated(keys)]).astype(np.int64)
    return found if len(found) >= least_frac * len(keys) else found[:0]


def _without(events: SpilledEvents, places: IntArray) -> SpilledEvents:
    if not len(places):
        return events
    before = events.is_possible

    def is_kept(part: Events) -> _Mask:
        kept = np.isin(part.position, places, invert=True)
        return kept if before is None else kept & before(part)

    return replace(events, is_possible=is_kept)
