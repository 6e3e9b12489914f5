"""The complete events of one Kineto file as columns, sorted by what we use them for.

Batches of events come in and only numbers stay: device activities in memory, by a
hundred bytes each, and operators and host calls, of which there are the most, on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.terms import DeviceInterface, KernelCategory

from ...wording.message import message
from ..far_times import Extents, Window
from ..kernel_names import CATEGORY_OF_EVENT, kernel_category
from .categories import (
    ASCEND,
    ASCEND_CALL,
    DEVICE_NOTE,
    DRIVER,
    HOST_NOTE,
    LAUNCH,
    OPERATOR,
    OVERHEAD,
    PYTHON,
    UNUSED,
    USED,
    NoteNames,
    UnknownCategories,
    category_of,
    long_python,
    one_of,
)
from .event_columns import (
    CATEGORIES,
    INTERFACES,
    NO_LENGTH,
    Blocks,
    ColumnSpill,
    Events,
    IntArray,
    RoledEvents,
    SpilledEvents,
    transfer_columns,
)
from .events import AnyEvent, EventArgs, EventContent, any_half, to_integers
from .input_shapes import InputShapes
from .processes import Processes
from .stamps import EXPORT_AGAIN, readable_stamps

_SPILLED = LAUNCH | OPERATOR
_NO_ARGS = EventArgs()
_COMMUNICATION = CATEGORIES.index(KernelCategory.COMMUNICATION)

Mask = npt.NDArray[np.bool_]
_NONE: IntArray = np.empty(0, dtype=np.int64)


class _Category:
    """The parts of one trace category, one for each batch, in memory or spilled."""

    def __init__(self) -> None:
        self.parts: list[Events] = []
        self.spill: ColumnSpill | None = None
        self.count = 0
        self.communication: dict[int, EventArgs] = {}


class _Batch(NamedTuple):
    """Events, and the columns that all of them have."""

    rows: Sequence[EventContent]
    columns: dict[str, npt.NDArray[Any]]

    def at(self, places: slice) -> _Batch:
        """Return some neighbouring events."""
        columns = {name: values[places] for name, values in self.columns.items()}
        return _Batch(self.rows[places], columns)

    def some(self, places: IntArray) -> _Batch:
        """Return the events at some places."""
        columns = {name: values[places] for name, values in self.columns.items()}
        return _Batch([self.rows[place] for place in places.tolist()], columns)


class RoleCollector:
    """Turns batches of events into columns.

    Events keep their order within a trace category, and categories the order in
    which they first come; the rows of the tables follow it.

    Args:
        where: What an error names.
        folder: Where events wait on disk; the system's folder if not given.
    """

    def __init__(self, where: str, *, folder: Path | None = None) -> None:
        self.has_halves = False
        """True where events begin or end something: none of them is complete, and none was taken."""
        self._where = where
        self._folder = folder
        self._codes = _Codes()
        self._kernel_category: dict[int, int] = {}
        self._by_category: dict[str, _Category] = defaultdict(_Category)
        self._texts: dict[str, str] = {}
        self._blocks = Blocks()
        self._shapes = InputShapes()
        self._merged_ranks: set[int] = set()
        self._processes = Processes()
        self._notes = NoteNames()
        self._unknown = UnknownCategories()
        self._unplaced = 0
        self._timeless = 0
        self._timeless_device = 0
        self._lengthless = 0
        self._extents = Extents()
        self._seen = 0

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Take one batch; events that are not complete (``ph`` X) or not used are skipped.

        What all events have is turned to columns at once, in the order of the categories.
        """
        codes = _Codes()
        kinds = [(event.cat or category_of(event)) if event.ph == "X" else "" for event in events]
        code = np.fromiter(map(codes.__getitem__, kinds), np.int64, len(events))
        if listed := {name: one_of(name) for name in codes if "," in name}:
            codes = _Codes()
            plain = (listed.get(kind, kind) for kind in kinds)
            code = np.fromiter(map(codes.__getitem__, plain), np.int64, len(events))
        used = [category for category in codes if category.lower() not in UNUSED]
        parts = [np.flatnonzero(code == codes[category]) for category in used]
        for at, category in enumerate(used):
            if category.lower() == PYTHON:
                parts[at] = long_python(events, parts[at])
            elif category.lower() not in USED:
                parts[at] = self._unknown.of_device(category, events, parts[at])
        if "" in codes:
            others = [events[place] for place in np.flatnonzero(code == codes[""]).tolist()]
            self._unplaced += sum(event.ph == "X" for event in others)
            self.has_halves = self.has_halves or any_half(others)
        places = np.concatenate([_NONE, *parts])
        # Events of other phases have no category that is used.
        rows = cast(list[EventContent], [events[place] for place in places.tolist()])
        batch, is_time = self._batch(rows, places + self._seen)
        timed = np.append(0, np.cumsum(is_time))
        bounds = timed[np.cumsum([0, *map(len, parts)])].tolist()
        for category, part, (first, last) in zip(used, parts, pairwise(bounds), strict=True):
            if category.lower() in CATEGORY_OF_EVENT:
                self._timeless_device += len(part) - (last - first)
            if first < last:
                self._add_category(category, batch.at(slice(first, last)))
        self._seen += len(events)

    def finish(self, base_ns: int) -> RoledEvents:
        """Return all events, with the time base of the file added.

        Raises:
            TraceFormatError: Most events, or most of the device, have no time stamp that can be read.
        """
        if self._timeless > sum(one.count for one in self._by_category.values()):
            raise TraceFormatError(
                message("refused.timeless", events=self._timeless),
                where=self._where,
                remedy=EXPORT_AGAIN,
            )
        device = self._pick({*CATEGORY_OF_EVENT, *self._unknown.names()})
        if self._timeless_device > sum(one.count for one in device):
            raise TraceFormatError(
                message("refused.timeless_device", events=self._timeless_device),
                where=self._where,
                remedy=EXPORT_AGAIN,
            )
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

        def spilled(wanted: Container[str]) -> SpilledEvents:
            spills = [one.spill for one in self._pick(wanted) if one.spill is not None]
            return SpilledEvents(spills, base_ns)

        return RoledEvents(
            names=list(self._codes),
            shapes=self._shapes.texts,
            device=joined(device),
            launch=spilled(LAUNCH),
            operator=spilled(OPERATOR),
            host_note=joined(self._pick({HOST_NOTE})),
            device_note=joined(self._pick({DEVICE_NOTE})),
            python=joined(self._pick({PYTHON})),
            overhead=joined(self._pick({OVERHEAD})),
            communication=communication,
            merged_ranks=frozenset(self._merged_ranks),
            processes=self._processes.found(),
            unknown=self._unknown.counts(),
            unplaced=self._unplaced,
            is_ascend=any(name.startswith(ASCEND) for name in self._by_category),
            timeless=self._timeless,
            lengthless=self._lengthless,
            doubtful=_moved(self._extents.doubtful_window(), base_ns),
        )

    def close(self) -> None:
        """Give the space on disk back; what ``finish`` returned can then no longer be read."""
        for one in self._by_category.values():
            if one.spill is not None:
                one.spill.close()

    def _pick(self, wanted: Container[str]) -> list[_Category]:
        return [one for name, one in self._by_category.items() if name.lower() in wanted]

    def _batch(self, rows: Sequence[EventContent], position: IntArray) -> tuple[_Batch, Mask]:
        """Return the events that have a time, with what all have, and which they are.

        The others are counted. A length that is missing, negative or no number is ``NO_LENGTH``.
        """
        start, is_time = readable_stamps([event.ts for event in rows])
        if not is_time.all():
            self._timeless += len(rows) - len(start)
            rows = [rows[place] for place in np.flatnonzero(is_time).tolist()]
            position = position[is_time]
        known, is_known = readable_stamps([event.dur for event in rows])
        dur = np.full(len(rows), NO_LENGTH, dtype=np.int64)
        dur[is_known] = np.maximum(known, NO_LENGTH)
        self._extents.add(start, np.maximum(dur, 0))
        names = [event.name for event in rows]
        name = np.fromiter(map(self._codes.__getitem__, names), np.int64, len(rows))
        columns: dict[str, npt.NDArray[Any]] = {"start": start, "name": name, "dur": dur}
        columns["position"] = position.astype(np.int32)
        return _Batch(rows, columns), is_time

    def _add_category(self, category: str, batch: _Batch) -> None:
        if category.lower() in OPERATOR:
            self._add_operators(category, batch)
            return
        self._add_rows(category, batch)

    def _add_operators(self, category: str, batch: _Batch) -> None:
        self._processes.add(batch.rows)
        is_note = self._notes.among(category, batch.columns["name"], batch.rows)
        for role, mask in ((category, ~is_note), (HOST_NOTE, is_note)):
            if mask.all():
                self._add_rows(role, batch)
            elif mask.any():
                self._add_rows(role, batch.some(np.flatnonzero(mask)))

    def _add_rows(self, category: str, batch: _Batch) -> None:
        rows = batch.rows
        args = [event.args or _NO_ARGS for event in rows]
        into = self._by_category[category]
        role = category.lower()
        columns: dict[str, Any] = dict(batch.columns)
        if role in LAUNCH:
            if role != ASCEND_CALL:
                self._processes.add_calls(rows)
            columns["correlation"] = to_integers([a.correlation for a in args])
            called = DeviceInterface.DRIVER if role in DRIVER else DeviceInterface.RUNTIME
            columns["category"] = np.full(len(rows), INTERFACES.index(called))
        else:
            columns["external_id"] = to_integers([a.external_id for a in args])
        if role in OPERATOR:
            columns["shapes"] = self._shapes.codes(rows)
        if role == DEVICE_NOTE:
            columns["device"] = to_integers([event.pid for event in rows], bits=32)
        is_device = role in CATEGORY_OF_EVENT or category in self._unknown
        if is_device:
            columns |= self._device_columns(rows, args)
            columns |= transfer_columns(role, args)
            columns["category"] = self._category_codes(into, role, batch, args)
        else:
            columns["dur"] = np.maximum(columns["dur"], 0)
            self._lengthless += int((batch.columns["dur"] < 0).sum())
            columns["thread"] = to_integers([event.tid for event in rows])
        self._keep(into, role, columns)
        into.count += len(rows)

    def _keep(self, into: _Category, role: str, columns: dict[str, Any]) -> None:
        if role not in _SPILLED:
            # A slice would hold the columns of its whole batch.
            into.parts.append(Events(**{name: values.copy() for name, values in columns.items()}))
            return
        if into.spill is None:
            types = {name: values.dtype for name, values in columns.items()}
            into.spill = ColumnSpill(types, self._folder)
        into.spill.add(columns)

    def _device_columns(
        self, rows: Sequence[EventContent], args: Sequence[EventArgs]
    ) -> dict[str, IntArray]:
        merged = [a.merged_rank for a in args if a.merged_rank is not None]
        self._merged_ranks.update(rank for rank in merged if isinstance(rank, int))
        devices, streams = [a.device for a in args], [a.stream for a in args]
        if None in devices or None in streams:
            pairs = list(zip(rows, args, strict=True))
            devices = [event.pid if a.device is None else a.device for event, a in pairs]
            streams = [event.tid if a.stream is None else a.stream for event, a in pairs]
        grids = [self._blocks[bytes(a.grid)] for a in args]
        return {
            "correlation": to_integers([a.correlation for a in args]),
            "device": to_integers(devices, bits=32),
            "stream": to_integers(streams),
            "blocks": np.array(grids, dtype=np.int64),
        }

    def _category_codes(
        self, into: _Category, role: str, batch: _Batch, args: Sequence[EventArgs]
    ) -> IntArray:
        """Return what each activity is: metadata first, then the trace category and the name."""
        default = CATEGORY_OF_EVENT.get(role, KernelCategory.UNKNOWN)
        if default != KernelCategory.COMPUTE:
            return np.full(len(args), CATEGORIES.index(default), dtype=np.int64)
        codes, first, place = np.unique(
            batch.columns["name"], return_index=True, return_inverse=True
        )
        for code, row in zip(codes.tolist(), first.tolist(), strict=True):
            if code not in self._kernel_category:
                category = kernel_category(batch.rows[row].name)
                self._kernel_category[code] = CATEGORIES.index(category)
        by_name = np.array([self._kernel_category[code] for code in codes.tolist()], dtype=np.int64)
        is_named = np.array([a.collective_name is not None for a in args], dtype=bool)
        found: IntArray = np.where(is_named, _COMMUNICATION, by_name[place])
        for at in np.flatnonzero(found == _COMMUNICATION).tolist():
            into.communication[into.count + at] = self._kept(args[at])
        return found

    def _kept(self, args: EventArgs) -> EventArgs:
        """Return arguments that hold no part of the file's text, and each list of members once."""
        args.grid = msgspec.Raw(b"")
        if isinstance(args.group_ranks, str):
            args.group_ranks = self._texts.setdefault(args.group_ranks, args.group_ranks)
        return args


def _moved(window: Window | None, base_ns: int) -> Window | None:
    return None if window is None else Window(window.first + base_ns, window.last + base_ns)


class _Codes(dict[str, int]):
    """A number for each distinct name, in the order in which they come."""

    def __missing__(self, name: str) -> int:
        code = self[name] = len(self)
        return code
