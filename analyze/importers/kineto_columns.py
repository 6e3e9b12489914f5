"""One rank's Kineto events as columns: device activities, operators, steps, annotations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.terms import KernelCategory, SpanKind

from .kernel_names import CATEGORY_OF_EVENT, kernel_category
from .kineto_events import Event, EventArgs, microseconds_to_ns, to_int

IntArray = npt.NDArray[np.int64]

_LAUNCH = frozenset(
    {"cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "privateuse1_runtime"}
)
_OPERATOR = frozenset({"cpu_op", "operator"})
_HOST_NOTE, _DEVICE_NOTE = "user_annotation", "gpu_user_annotation"
_STEP_NAME = re.compile(r"ProfilerStep#(\d+)")
_SPANS = (
    (re.compile(r"Optimizer\.step#"), SpanKind.OPTIMIZER),
    (re.compile(r"enumerate\(DataLoader\)"), SpanKind.DATA_LOAD),
)
_WHOLE_FILE_STEP = 0
NO_STEP = -1


@dataclass(frozen=True, slots=True)
class RoledEvents:
    """The complete events of one file, by what we use them for."""

    device: list[Event]
    launch: list[Event]
    operator: list[Event]
    host_note: list[Event]
    device_note: list[Event]
    timeless: int
    """Complete events without a time stamp; left out."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Start and duration of a list of events, ns."""

    start: IntArray
    dur: IntArray

    @property
    def end(self) -> IntArray:
        """Return the ends."""
        return self.start + self.dur


@dataclass(frozen=True, slots=True)
class StepWindows:
    """Profiler steps in time order; windows of one rank do not overlap."""

    number: IntArray
    start: IntArray
    end: IntArray
    is_whole_file: bool
    """True where the file marks no step and stands for a single one."""

    def step_of(self, time: IntArray) -> IntArray:
        """Return the step in whose window each instant falls, ``NO_STEP`` outside."""
        if self.is_whole_file:
            return np.full(len(time), _WHOLE_FILE_STEP, dtype=np.int64)
        place = np.searchsorted(self.start, time, side="right") - 1
        is_in = (place >= 0) & (time < self.end[place])
        return np.where(is_in, self.number[place], NO_STEP)


@dataclass(frozen=True, slots=True)
class DeviceColumns:
    """Device activities, one element each."""

    names: list[str]
    category: list[KernelCategory]
    time: Intervals
    device: IntArray
    stream: IntArray
    correlation: IntArray
    launch: IntArray
    """Start of the host call that launched it; its own start where it is not linked."""
    is_linked: npt.NDArray[np.bool_]
    operator: IntArray
    """Position of the operator around the launch, -1 if none."""


def split_roles(events: Sequence[Event]) -> RoledEvents:
    """Sort complete events (``ph`` X) into the roles that we use; all others are not looked at."""
    by_category: dict[str, list[Event]] = defaultdict(list)
    timeless = 0
    for event in events:
        if event.ph != "X":
            continue
        if event.start_text():
            by_category[event.cat].append(event)
        else:
            timeless += 1
    lowered = {category: category.lower() for category in by_category}

    def pick(is_wanted: Callable[[str], bool]) -> list[Event]:
        return [e for c, rows in by_category.items() if is_wanted(lowered[c]) for e in rows]

    return RoledEvents(
        device=pick(CATEGORY_OF_EVENT.__contains__),
        launch=pick(_LAUNCH.__contains__),
        operator=pick(_OPERATOR.__contains__),
        host_note=pick(_HOST_NOTE.__eq__),
        device_note=pick(_DEVICE_NOTE.__eq__),
        timeless=timeless,
    )


def times(events: Sequence[Event], base_ns: int, where: str) -> Intervals:
    """Return the intervals of events; a missing or negative duration counts as 0.

    Raises:
        TraceFormatError: A stamp is no number.
    """
    start = microseconds_to_ns([event.start_text() for event in events], where)
    dur = microseconds_to_ns([event.dur_text() or b"0" for event in events], where)
    return Intervals(start + base_ns, np.maximum(dur, 0))


def device_columns(
    roles: RoledEvents, operators: Intervals, base_ns: int, where: str
) -> DeviceColumns:
    """Return the device activities, each linked to its launch and operator where possible.

    A launch is the first host call with the same correlation. An operator is
    taken only if it was open at the launch: older versions write correlations
    where newer ones write operator ids.
    """
    time = times(roles.device, base_ns, where)
    args = [event.args or _NO_ARGS for event in roles.device]
    correlation = _integers(a.correlation for a in args)
    calls = times(roles.launch, base_ns, where)
    call = first_match(
        correlation, _integers((e.args or _NO_ARGS).correlation for e in roles.launch), calls.start
    )
    is_linked = call >= 0
    launch = take_or(calls.start, call, time.start)
    operator = first_match(
        external_ids(roles.device), external_ids(roles.operator), operators.start
    )
    began = take_or(operators.start, operator, launch)
    ended = take_or(operators.end, operator, launch)
    is_open = is_linked & (began <= launch) & (launch < ended)
    rows = list(zip(roles.device, args, strict=True))
    return DeviceColumns(
        names=[event.name for event in roles.device],
        category=_categories(roles.device),
        time=time,
        device=_integers((e.pid if a.device is None else a.device for e, a in rows), bits=32),
        stream=_integers(e.tid if a.stream is None else a.stream for e, a in rows),
        correlation=correlation,
        launch=launch,
        is_linked=is_linked,
        operator=np.where(is_open, operator, -1),
    )


def step_windows(roles: RoledEvents, base_ns: int, where: str) -> StepWindows:
    """Return the ProfilerStep windows on the host, or one window over the whole file."""
    marked = _matching(roles.host_note, _STEP_NAME) or _matching(roles.operator, _STEP_NAME)
    if marked:
        window = times([event for event, _ in marked], base_ns, where)
        number = np.array([int(match[1]) for _, match in marked], dtype=np.int64)
        number, first = np.unique(number, return_index=True)
        order = np.argsort(window.start[first], kind="stable")
        first = first[order]
        return StepWindows(
            number[order], window.start[first], window.end[first], is_whole_file=False
        )
    everything = times([*roles.device, *roles.operator, *roles.host_note], base_ns, where)
    bounds = (everything.start.min(), everything.end.max()) if len(everything.start) else (0, 0)
    start, end = (np.array([bound], dtype=np.int64) for bound in bounds)
    return StepWindows(np.array([_WHOLE_FILE_STEP]), start, end, is_whole_file=True)


def recognised_spans(roles: RoledEvents) -> list[tuple[SpanKind, list[Event]]]:
    """Return the annotations that mean a span kind.

    The optimizer is device work: its device-side annotation is preferred to the
    host-side one, which covers the launches only.
    """
    found = []
    for pattern, kind in _SPANS:
        on_device = _matching(roles.device_note, pattern) if kind == SpanKind.OPTIMIZER else []
        rows = on_device or _matching(roles.host_note, pattern)
        found.append((kind, [event for event, _ in rows]))
    return found


def external_ids(events: Iterable[Event]) -> IntArray:
    """Return the profiler's own id of each event, -1 if it has none."""
    return _integers((event.args or _NO_ARGS).external_id for event in events)


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


def take_or(values: IntArray, place: IntArray, default: IntArray) -> IntArray:
    """Return the value at each place, and the default where the place is -1."""
    taken = default.copy()
    taken[place >= 0] = values[place[place >= 0]]
    return taken


_NO_ARGS = EventArgs()


def _matching(events: list[Event], pattern: re.Pattern[str]) -> list[tuple[Event, re.Match[str]]]:
    pairs = ((event, pattern.match(event.name)) for event in events)
    return [(event, match) for event, match in pairs if match]


def _integers(values: Iterable[object], *, bits: int = 64) -> IntArray:
    return np.array([to_int(value, bits=bits) for value in values], dtype=np.int64)


def _categories(events: list[Event]) -> list[KernelCategory]:
    """Return the category of each activity: metadata first, then the trace category and the name."""
    by_name: dict[str, KernelCategory] = {}
    found = []
    for event in events:
        category = CATEGORY_OF_EVENT[event.cat.lower()]
        if category == KernelCategory.COMPUTE:
            if event.name not in by_name:
                by_name[event.name] = kernel_category(event.name)
            has_metadata = event.args is not None and event.args.collective_name is not None
            category = KernelCategory.COMMUNICATION if has_metadata else by_name[event.name]
        found.append(category)
    return found
