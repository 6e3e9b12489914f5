"""The complete events of one Kineto file as columns, sorted by what we use them for.

Batches of events come in and only numbers stay: what a capture needs in memory
grows with its events by tens of bytes each, not with the text they are written in.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.terms import KernelCategory

from .kernel_names import CATEGORY_OF_EVENT, kernel_category
from .kineto_events import Event, EventArgs, decimal_texts, microseconds_to_ns, to_integers

IntArray = npt.NDArray[np.int64]
CATEGORIES = tuple(KernelCategory)
"""What the category codes of device activities stand for."""

_LAUNCH = frozenset(
    {"cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "privateuse1_runtime"}
)
_OPERATOR = frozenset({"cpu_op", "operator"})
_HOST_NOTE, _DEVICE_NOTE = "user_annotation", "gpu_user_annotation"
_USED = frozenset(CATEGORY_OF_EVENT) | _LAUNCH | _OPERATOR | {_HOST_NOTE, _DEVICE_NOTE}
_NO_ARGS = EventArgs()
_NONE: IntArray = np.empty(0, dtype=np.int64)
_COMMUNICATION = CATEGORIES.index(KernelCategory.COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Start and duration of a list of events, ns."""

    start: IntArray
    dur: IntArray

    @property
    def end(self) -> IntArray:
        """Return the ends."""
        return self.start + self.dur


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Events of one role, one element each; columns that the role does not use are empty."""

    start: IntArray
    name: IntArray = field(default_factory=lambda: _NONE)
    """Codes of the names."""
    dur: IntArray = field(default_factory=lambda: _NONE)
    external_id: IntArray = field(default_factory=lambda: _NONE)
    """The profiler's own id, -1 if it has none."""
    correlation: IntArray = field(default_factory=lambda: _NONE)
    thread: IntArray = field(default_factory=lambda: _NONE)
    device: IntArray = field(default_factory=lambda: _NONE)
    stream: IntArray = field(default_factory=lambda: _NONE)
    category: IntArray = field(default_factory=lambda: _NONE)
    """Positions in ``CATEGORIES``."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def time(self) -> Intervals:
        """Return the intervals."""
        return Intervals(self.start, self.dur)

    def named(self, codes: Iterable[int]) -> Events:
        """Return the events whose name is one of these."""
        places = np.flatnonzero(np.isin(self.name, np.fromiter(codes, np.int64)))
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return Events(**{key: c[places] if len(c) else c for key, c in columns.items()})

    @classmethod
    def joined(cls, parts: Sequence[Events], base_ns: int) -> Events:
        """Return the events of all parts in their order, their times moved by ``base_ns``."""
        if not parts:
            return cls(start=_NONE)
        columns = {
            column.name: np.concatenate([getattr(part, column.name) for part in parts])
            for column in fields(cls)
        }
        columns["start"] += base_ns
        return cls(**columns)


@dataclass(frozen=True, slots=True)
class RoledEvents:
    """The complete events of one file, by what we use them for."""

    names: list[str]
    """Distinct names, at the positions that the columns call codes."""
    device: Events
    launch: Events
    operator: Events
    host_note: Events
    device_note: Events
    communication: dict[int, EventArgs]
    """Arguments of the device events that communicate, by position."""
    merged_ranks: frozenset[int]
    """Ranks that device events name, as they do in files joined by a tool."""
    timeless: int
    """Complete events without a time stamp; left out."""

    def names_like(self, pattern: re.Pattern[str]) -> dict[int, re.Match[str]]:
        """Return the codes of the names that begin as the pattern says, with the match."""
        pairs = ((code, pattern.match(name)) for code, name in enumerate(self.names))
        return {code: match for code, match in pairs if match}


class _Category:
    """The parts of one trace category, one for each batch."""

    def __init__(self) -> None:
        self.parts: list[Events] = []
        self.count = 0
        self.communication: dict[int, EventArgs] = {}


class RoleCollector:
    """Turns batches of events into columns.

    Events keep their order within a trace category, and categories the order in
    which they first come; the rows of the tables follow it.

    Args:
        where: What an error names.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._codes = _Codes()
        self._kernel_category: dict[str, int] = {}
        self._by_category: dict[str, _Category] = defaultdict(_Category)
        self._texts: dict[str, str] = {}
        self._merged_ranks: set[int] = set()
        self._timeless = 0

    def add(self, events: Iterable[Event]) -> None:
        """Take one batch; events that are not complete (``ph`` X) or not used are skipped.

        Raises:
            TraceFormatError: A time stamp is no number.
        """
        batch: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if event.ph == "X":
                batch[event.cat].append(event)
        for category, rows in batch.items():
            if category.lower() in _USED:
                self._add_category(category, rows)

    def finish(self, base_ns: int) -> RoledEvents:
        """Return all events, with the time base of the file added."""
        device = self._pick(CATEGORY_OF_EVENT)
        communication: dict[int, EventArgs] = {}
        before = 0
        for one in device:
            communication |= {before + place: args for place, args in one.communication.items()}
            before += one.count

        def joined(categories: Sequence[_Category]) -> Events:
            parts = [part for one in categories for part in one.parts]
            for one in categories:
                one.parts.clear()
            return Events.joined(parts, base_ns)

        return RoledEvents(
            names=list(self._codes),
            device=joined(device),
            launch=joined(self._pick(_LAUNCH)),
            operator=joined(self._pick(_OPERATOR)),
            host_note=joined(self._pick({_HOST_NOTE})),
            device_note=joined(self._pick({_DEVICE_NOTE})),
            communication=communication,
            merged_ranks=frozenset(self._merged_ranks),
            timeless=self._timeless,
        )

    def _pick(self, wanted: Container[str]) -> list[_Category]:
        return [one for name, one in self._by_category.items() if name.lower() in wanted]

    def _add_category(self, category: str, rows: list[Event]) -> None:
        starts = decimal_texts([event.ts for event in rows])
        if not all(starts):
            rows = [event for event, start in zip(rows, starts, strict=True) if start]
            self._timeless += len(starts) - len(rows)
            starts = [start for start in starts if start]
        if not rows:
            return
        args = [event.args or _NO_ARGS for event in rows]
        into = self._by_category[category]
        role = category.lower()
        columns = {"start": microseconds_to_ns(starts, self._where)}
        if role in _LAUNCH:
            columns["correlation"] = to_integers([a.correlation for a in args])
        else:
            columns |= self._named_columns(rows, args)
        if role in _OPERATOR:
            columns["thread"] = to_integers([event.tid for event in rows])
        if role in CATEGORY_OF_EVENT:
            columns |= self._device_columns(rows, args)
            columns["category"] = self._category_codes(into, CATEGORY_OF_EVENT[role], rows)
        into.parts.append(Events(**columns))
        into.count += len(rows)

    def _named_columns(self, rows: list[Event], args: list[EventArgs]) -> dict[str, IntArray]:
        durations = [text or b"0" for text in decimal_texts([event.dur for event in rows])]
        names = (event.name for event in rows)
        return {
            "name": np.fromiter(map(self._codes.__getitem__, names), np.int64, len(rows)),
            "dur": np.maximum(microseconds_to_ns(durations, self._where), 0),
            "external_id": to_integers([a.external_id for a in args]),
        }

    def _device_columns(self, rows: list[Event], args: list[EventArgs]) -> dict[str, IntArray]:
        self._merged_ranks.update(a.merged_rank for a in args if isinstance(a.merged_rank, int))
        pairs = list(zip(rows, args, strict=True))
        devices = [event.pid if a.device is None else a.device for event, a in pairs]
        streams = [event.tid if a.stream is None else a.stream for event, a in pairs]
        return {
            "correlation": to_integers([a.correlation for a in args]),
            "device": to_integers(devices, bits=32),
            "stream": to_integers(streams),
        }

    def _category_codes(
        self, into: _Category, default: KernelCategory, rows: list[Event]
    ) -> IntArray:
        """Return what each activity is: metadata first, then the trace category and the name."""
        if default != KernelCategory.COMPUTE:
            return np.full(len(rows), CATEGORIES.index(default), dtype=np.int64)
        found = np.fromiter(map(self._category_of, rows), np.int64, len(rows))
        for place in np.flatnonzero(found == _COMMUNICATION).tolist():
            into.communication[into.count + place] = self._kept(rows[place].args or _NO_ARGS)
        return found

    def _category_of(self, event: Event) -> int:
        if event.args is not None and event.args.collective_name is not None:
            return _COMMUNICATION
        name = event.name
        if name not in self._kernel_category:
            self._kernel_category[name] = CATEGORIES.index(kernel_category(name))
        return self._kernel_category[name]

    def _kept(self, args: EventArgs) -> EventArgs:
        """Return arguments whose longest text, the members of a group, is stored once."""
        if isinstance(args.group_ranks, str):
            args.group_ranks = self._texts.setdefault(args.group_ranks, args.group_ranks)
        return args


class _Codes(dict[str, int]):
    """A number for each distinct name, in the order in which they come."""

    def __missing__(self, name: str) -> int:
        code = self[name] = len(self)
        return code
