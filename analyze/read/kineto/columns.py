"""What links one rank's Kineto events: launches, operators, steps, recognised annotations.

PyTorch up to 2.0 writes the correlation of a launch where later versions write the id of its
operator, so ids lead nowhere there. Operators of a thread nest: the innermost around an instant is
the last that began and has not ended.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
import numpy.typing as npt

from ...wording.limits import Limit
from ...wording.message import message
from .event_columns import Events, IntArray, RoledEvents
from .step_marks import found_steps

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


_STEP_NAME = re.compile(r"ProfilerStep#(\d{1,9})(?!\d)")
_WHOLE_FILE_STEP = 0
NO_STEP = -1
_ROUNDED_NS = 1_000
"""Two copies of one mark differ by less, where a tool rounds."""


class StepWindows(msgspec.Struct, frozen=True):
    """Profiler steps in time order; windows of one rank do not overlap."""

    number: IntArray
    start: IntArray
    end: IntArray
    is_whole_file: bool
    """True where the file marks no step and stands for a single one."""
    found_by: Limit | None = None
    """What they were found by; None where the file itself says their numbers."""

    def step_of(self, time: IntArray) -> IntArray:
        """Return the step in whose window each instant falls, ``NO_STEP`` outside."""
        if self.is_whole_file:
            return np.full(len(time), _WHOLE_FILE_STEP, dtype=np.int64)
        place = np.searchsorted(self.start, time, side="right") - 1
        is_in = (place >= 0) & (time < self.end[place])
        return np.where(is_in, self.number[place], NO_STEP)


class DeviceLinks(msgspec.Struct, frozen=True):
    """Where each device activity comes from, one element each."""

    launch: IntArray
    """Start of the host call that launched it; its own start where it is not linked."""
    is_linked: npt.NDArray[np.bool_]
    operator: IntArray
    """Position of the operator around the launch, -1 if none."""

    def at(self, places: npt.NDArray[np.intp]) -> DeviceLinks:
        """Return the links of the activities at some positions."""
        return DeviceLinks(self.launch[places], self.is_linked[places], self.operator[places])


def device_links(roles: RoledEvents) -> DeviceLinks:
    """Link each device activity to its launch and operator where possible.

    A launch is the host call with the same correlation, of several the last one before. An operator is
    taken by its id only if it was open at the launch: older versions write correlations
    where newer ones write operator ids. Then the innermost around the launch on its thread counts.
    """
    device = roles.device
    launched = np.unique(device.correlation[device.correlation > 0])
    calls = roles.launch.select(lambda part: _is_in(part.correlation, launched)).events
    call = launching_call(device, calls)
    is_linked = call >= 0
    launch = take_or(calls.start, call, device.start)
    named = np.unique(device.external_id[device.external_id > 0])
    found = roles.operator.select(lambda part: _is_in(part.external_id, named))
    operators = found.events.time
    operator = first_match(device.external_id, found.events.external_id, operators.start)
    began = take_or(operators.start, operator, launch)
    ended = take_or(operators.end, operator, launch)
    is_open = is_linked & (began <= launch) & (launch < ended)
    if roles.is_ascend:
        # A queue launches for operators that have returned; there ids are those of operators.
        is_open = is_linked & (operator >= 0)
    place = take_or(found.place, operator, np.full(len(device), -1, dtype=np.int64))
    place = np.where(is_open, place, -1)
    lost = np.flatnonzero(is_linked & ~is_open)
    if len(lost):
        thread = take_or(calls.thread, call, np.full(len(device), -1, dtype=np.int64))
        place[lost] = operators_around(roles, launch[lost], thread[lost])
    return DeviceLinks(launch, is_linked, place)


def step_windows(roles: RoledEvents) -> StepWindows:
    """Return the ProfilerStep windows on the host, those of updates or notes, or one over the whole file."""
    number_of = {code: int(match[1]) for code, match in roles.names_like(_STEP_NAME).items()}
    window = roles.host_note.named(number_of)
    if not len(window) and number_of:
        codes = np.array(sorted(number_of), dtype=np.int64)
        window = roles.operator.select(lambda part: _is_in(part.name, codes)).events
    if len(window):
        number = np.array([number_of[code] for code in window.name.tolist()], dtype=np.int64)
        number, first = np.unique(number, return_index=True)
        order = np.argsort(window.start[first], kind="stable")
        first = first[order]
        return StepWindows(
            number[order], window.start[first], window.time.end[first], is_whole_file=False
        )
    on_device = _device_steps(roles.device_note.named(number_of), number_of)
    if on_device is not None:
        return on_device
    found = windows_found(roles)
    if found is not None:
        return found
    events = (roles.device, roles.host_note, *roles.operator.parts())
    some = [one for one in events if len(one)] or [roles.python]
    extents = [(e.start.min(), e.time.end.max()) for e in some]
    bounds = (min(first for first, _ in extents), max(last for _, last in extents))
    start, end = (np.array([bound], dtype=np.int64) for bound in bounds)
    return StepWindows(np.array([_WHOLE_FILE_STEP]), start, end, is_whole_file=True)


def windows_found(roles: RoledEvents) -> StepWindows | None:
    """Return the steps by what the program did in each, numbered from 1; None where nothing shows them."""
    found = found_steps(roles)
    if found is None:
        return None
    number = np.arange(1, len(found.start) + 1, dtype=np.int64)
    return StepWindows(number, found.start, found.end, is_whole_file=False, found_by=found.by)


def threads_of_a_step(roles: RoledEvents) -> list[int]:
    """Return the threads that mark one step at one time: a profiler marks it once on its own, so several have written."""
    number_of = {code: int(match[1]) for code, match in roles.names_like(_STEP_NAME).items()}
    marks = roles.host_note.named(number_of)
    for code in np.unique(marks.name).tolist():
        own = marks.at(np.flatnonzero(marks.name == code))
        threads: list[int] = np.unique(own.thread).tolist()
        # Some versions write a mark twice, as an annotation and as an operator.
        is_another = len(threads) > 1 or np.ptp(own.start) >= _ROUNDED_NS
        if is_another and own.start.max() < own.time.end.min():
            return threads
    return []


def repeated_marks(roles: RoledEvents, steps: StepWindows) -> int:
    """Return how many marks have the number of a step at another time, which no table can tell from it."""
    number_of = {code: int(match[1]) for code, match in roles.names_like(_STEP_NAME).items()}
    marks = roles.host_note.named(number_of)
    if not len(marks) or steps.is_whole_file or steps.found_by is not None:
        return 0
    number = np.array([number_of[code] for code in marks.name.tolist()], dtype=np.int64)
    order = np.argsort(steps.number)
    at = order[np.searchsorted(steps.number, number, sorter=order).clip(max=len(order) - 1)]
    apart = (marks.start >= steps.end[at]) | (marks.time.end <= steps.start[at])
    return int((apart & (steps.number[at] == number)).sum())


def _device_steps(marks: Events, number_of: dict[int, int]) -> StepWindows | None:
    """Return the steps by their marks on the device, of files without the host; None without any.

    A mark lasts from the first to the last kernel of a step on a stream. What is between two belongs to the first.
    """
    if not len(marks):
        return None
    numbers = np.array([number_of[code] for code in marks.name.tolist()], dtype=np.int64)
    number, place = np.unique(numbers, return_inverse=True)
    start = np.full(len(number), np.iinfo(np.int64).max)
    np.minimum.at(start, place, marks.start)
    order = np.argsort(start, kind="stable")
    end = np.append(start[order][1:], marks.time.end.max())
    said = message("assumed.steps_on_device", steps=len(number))
    return StepWindows(number[order], start[order], end, is_whole_file=False, found_by=said)


def _is_in(values: IntArray, wanted: IntArray) -> npt.NDArray[np.bool_]:
    """Return which values are among the wanted ones, which are sorted."""
    if not len(wanted):
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
    found: npt.NDArray[np.bool_] = wanted[place] == values
    return found


def first_match(wanted: IntArray, keys: IntArray, order_by: IntArray) -> IntArray:
    """Return for each wanted key the position of its first row, -1 if there is none.

    First is by ``order_by``; keys that are not positive mean *no key*.
    """
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.lexsort((order_by, keys))
    place = np.searchsorted(keys[order], wanted)
    candidate = order[np.minimum(place, len(keys) - 1)]
    return np.where((wanted > 0) & (keys[candidate] == wanted), candidate, -1)


def launching_call(device: Events, calls: Events) -> IntArray:
    """Return for each device activity the position of the call with its correlation, -1 if there is none.

    Where calls that are not inside each other share a number, as in files put together from several, it is the
    last that began before the activity; where none did, as with clocks apart, the first.
    """
    call = first_match(device.correlation, calls.correlation, calls.start)
    numbers = np.sort(calls.correlation[calls.correlation > 0])
    shared = np.unique(numbers[1:][numbers[1:] == numbers[:-1]])
    unsure = np.flatnonzero(np.isin(device.correlation, shared))
    if not len(unsure):
        return call
    of_shared = np.flatnonzero(np.isin(calls.correlation, shared))
    order = of_shared[np.lexsort((calls.start[of_shared], calls.correlation[of_shared]))]
    # One number for number and time together: the times as their places among all of them.
    times = (calls.start[order], calls.time.end[order], device.start[unsure])
    _, place = np.unique(np.concatenate(times), return_inverse=True)
    start, end, begin = np.split(place, np.cumsum([len(one) for one in times[:2]]))
    group = np.searchsorted(shared, calls.correlation[order]) * (len(place) + 1)
    wanted = np.searchsorted(shared, device.correlation[unsure]) * (len(place) + 1)
    reached = np.append(-1, np.maximum.accumulate(group + end)[:-1])
    # A call inside another, such as that of the driver, is part of it.
    outer = np.flatnonzero(group + start >= reached)
    last = np.searchsorted((group + start)[outer], wanted + begin, side="right") - 1
    found = outer[np.maximum(last, 0)]
    is_before = (last >= 0) & (group[found] == wanted)
    call[unsure[is_before]] = order[found[is_before]]
    return call


def take_or(values: IntArray, place: IntArray, default: IntArray) -> IntArray:
    """Return the value at each place, and the default where the place is -1."""
    taken = default.copy()
    taken[place >= 0] = values[place[place >= 0]]
    return taken
