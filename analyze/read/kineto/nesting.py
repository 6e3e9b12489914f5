"""Operators around launches, by nesting on the thread that launches.

PyTorch up to 2.0 writes the correlation of a launch where later versions write the id of its
operator, so ids lead nowhere there. Operators of a thread nest: the innermost around an instant is
the last that began and has not ended.
"""

from __future__ import annotations

import numpy as np

from .event_columns import Events, IntArray, RoledEvents

_NEVER = np.iinfo(np.int64).min


def operators_around(roles: RoledEvents, time: IntArray, thread: IntArray) -> IntArray:
    """Return the position of the innermost operator around each instant on its thread, -1 if none.

    Operators are read a part at a time, so memory does not grow with the file.

    Args:
        roles: The events of a rank.
        time: Instants, ns.
        thread: The thread of each.
    """
    found = np.full(len(time), -1, dtype=np.int64)
    begun = np.full(len(time), _NEVER, dtype=np.int64)
    before = 0
    for part in roles.operator.parts():
        place = _innermost_of_part(part, time, thread)
        is_in = place >= 0
        start = np.where(is_in, part.start[np.maximum(place, 0)], _NEVER)
        # Of two that begin together the later written is the inner one.
        is_inner = is_in & (start >= begun)
        found = np.where(is_inner, place + before, found)
        begun = np.where(is_inner, start, begun)
        before += len(part)
    return found


def _innermost_of_part(part: Events, time: IntArray, thread: IntArray) -> IntArray:
    found = np.full(len(time), -1, dtype=np.int64)
    if not len(part):
        return found
    order = np.lexsort((-part.dur, part.start, part.thread))
    keys = part.thread[order]
    for own in np.intersect1d(np.unique(thread), keys).tolist():
        low, high = np.searchsorted(keys, [own, own + 1])
        places = np.flatnonzero(thread == own)
        rows = order[low:high]
        inside = innermost(part.start[rows], part.time.end[rows], time[places])
        found[places] = np.where(inside >= 0, rows[inside], -1)
    return found


def innermost(start: IntArray, end: IntArray, time: IntArray) -> IntArray:
    """Return the position of the innermost interval around each instant, -1 if none.

    As many are open at an instant as have begun and not ended, and the innermost is the last one of
    that depth to begin.

    Args:
        start: Starts of intervals that nest, sorted; of equal ones the longest first.
        end: Their ends.
        time: The instants.
    """
    count = len(start)
    ends = np.sort(end)
    index = np.arange(count)
    depth = index + 1 - np.searchsorted(ends, start, side="right")
    keys = np.sort(depth * count + index)
    begun = np.searchsorted(start, time, side="right")
    wanted = (begun - np.searchsorted(ends, time, side="right")) * count + begun - 1
    place = np.searchsorted(keys, wanted, side="right") - 1
    found = keys[np.maximum(place, 0)] % count
    is_in = (place >= 0) & (begun > 0) & (start[found] <= time) & (time < end[found])
    return np.where(is_in, found, -1)
