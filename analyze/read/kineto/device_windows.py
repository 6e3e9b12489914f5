"""Step windows of a rank whose device lags behind its host.

The host only launches: without a call that waits for the device it may be steps ahead, and its
marks of a step say nothing of when the device did the work of that step.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from .columns import NO_STEP, DeviceLinks, StepWindows
from .event_columns import Events, IntArray

_PAUSE_NS = 1_000_000
"""A device that has work already begins it within microseconds."""
_NEVER = np.iinfo(np.int64).max


def until_device_is_done(
    steps: StepWindows, device: Events, links: DeviceLinks, step_of_device: IntArray
) -> StepWindows:
    """Return the windows, each moved back to where the device is done with the step.

    With H the end of a step on the host, D the last end of device work that was launched in
    it, and N the first start, on the stream with the most work, of what was launched in the
    next one, a step ends at max(H, min(D, N)), and the next begins no earlier. A device that
    keeps up has D <= H, and the windows stay those of the host.

    N is there for work on a side stream that lasts into the next step; for that a stream
    counts on which work begins in the order of its launches.

    Worked example: the host launches 3 steps in 1 each, the device needs 3 for each.

    ==== ========= ============ ============
    step host      device works window
    ==== ========= ============ ============
    1    [0, 1)    [0, 3)       [0, 3)
    2    [1, 2)    [3, 6)       [3, 6)
    3    [2, 3)    [6, 9)       [6, 9)
    ==== ========= ============ ============

    Args:
        steps: Those of the host, in order of time.
        device: The device activities.
        links: Where they come from; one without a known launch says nothing of a step.
        step_of_device: In which step each was launched.
    """
    place = _place_of(steps, step_of_device)
    known = links.is_linked & (place >= 0)
    if steps.is_whole_file or not known.any():
        return steps
    done = np.full(len(steps.number), -_NEVER)
    np.maximum.at(done, place[known], device.time.end[known])
    begun = np.full(len(steps.number), _NEVER)
    is_main = known & _is_on_busiest_stream(device, known)
    np.minimum.at(begun, place[is_main], device.start[is_main])
    # A step without work on that stream leaves the border to the next one that has some.
    next_begun = np.append(np.minimum.accumulate(begun[::-1])[::-1][1:], _NEVER)
    device_end = np.maximum.accumulate(np.minimum(done, next_begun))
    end = np.maximum(steps.end, device_end)
    start = np.maximum(steps.start, np.append(-_NEVER, device_end[:-1]))
    return replace(steps, start=start, end=np.maximum(start, end))


def first_step_work(
    steps: StepWindows, device: Events, links: DeviceLinks
) -> tuple[StepWindows, DeviceLinks]:
    """Return windows and links without the tail of the step before the first one.

    The file begins while the device still works for a step that was launched before: that work has
    no launch in the file, or one before the first step, and began before anything that the file
    launches later. The first step begins where it ends. Work of the tail is in no step. What has no
    launch is of the tail only while the device goes on without a long pause: it had that work already.
    """
    if steps.is_whole_file or not len(steps.start) or not links.is_linked.any():
        return steps, links
    border = int(steps.start.min())
    is_own = links.is_linked & (links.launch >= border)
    if not is_own.any():
        return steps, links
    first = int(device.start[is_own].min())
    is_early = ~is_own & (device.start < first) & (~links.is_linked | (links.launch < border))
    is_tail = is_early & (device.time.end > border)
    is_tail &= links.is_linked | _goes_on(device, is_tail, border)
    if not is_tail.any():
        return steps, links
    at = int(steps.start.argmin())
    start = steps.start.copy()
    start[at] = min(int(device.time.end[is_tail].max()), first, int(steps.end[at]))
    launch = np.where(is_tail & ~links.is_linked, border - 1, links.launch)
    return replace(steps, start=start), replace(links, launch=launch)


def _goes_on(device: Events, rows: np.ndarray, border: int) -> np.ndarray:
    """Return which of some activities the device does before it first pauses for long after the border, ns."""
    places = np.flatnonzero(rows)
    places = places[np.argsort(device.start[places], kind="stable")]
    reached = np.maximum.accumulate(np.append(border, device.time.end[places]))[:-1]
    found = np.zeros(len(device), dtype=bool)
    found[places] = np.cumsum(device.start[places] - reached > _PAUSE_NS) == 0
    return found


def _place_of(steps: StepWindows, number: IntArray) -> IntArray:
    """Return the position of each step by its number, -1 for what is in none."""
    order = np.argsort(steps.number)
    at = np.searchsorted(steps.number[order], number)
    place = order[np.minimum(at, len(order) - 1)]
    return np.where((number != NO_STEP) & (steps.number[place] == number), place, -1)


def _is_on_busiest_stream(device: Events, known: np.ndarray) -> np.ndarray:
    """Return which activities are on the stream that the device works on for the longest."""
    pairs = np.column_stack([device.device, device.stream])
    streams, of = np.unique(pairs, axis=0, return_inverse=True)
    of = of.reshape(-1)
    busy = np.bincount(of[known], weights=device.dur[known], minlength=len(streams))
    return np.asarray(of == int(busy.argmax()))
