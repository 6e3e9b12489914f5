"""The complete events of one Kineto file as columns, sorted by what we use them for.

Batches of events come in and only numbers stay: device activities in memory, by a
hundred bytes each, and operators and host calls, of which there are the most, on disk.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.terms import DeviceInterface, KernelCategory

from ..kernel_names import CATEGORY_OF_EVENT, kernel_category
from .event_columns import (
    CATEGORIES,
    INTERFACES,
    Events,
    IntArray,
    RoledEvents,
    SpilledEvents,
)
from .events import (
    EXPORT_AGAIN,
    Event,
    EventArgs,
    decimal_texts,
    readable_stamps,
    to_floats,
    to_integers,
)
from .spill import ColumnSpill

_LAUNCH = frozenset(
    {"cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "privateuse1_runtime"}
)
_DRIVER = frozenset({"cuda_driver"})
_OPERATOR = frozenset({"cpu_op", "operator"})
_SPILLED = _LAUNCH | _OPERATOR
_HOST_NOTE, _DEVICE_NOTE = "user_annotation", "gpu_user_annotation"
_USED = frozenset(CATEGORY_OF_EVENT) | _LAUNCH | _OPERATOR | {_HOST_NOTE, _DEVICE_NOTE}
_NO_ARGS = EventArgs()
_WAITS = ("wait_stream", "wait_correlation")
_BYTES_PER_GB = 1e9
_MOST_BLOCKS = 1 << 62
_COMMUNICATION = CATEGORIES.index(KernelCategory.COMMUNICATION)


class _Category:
    """The parts of one trace category, one for each batch, in memory or spilled."""

    def __init__(self) -> None:
        self.parts: list[Events] = []
        self.spill: ColumnSpill | None = None
        self.count = 0
        self.communication: dict[int, EventArgs] = {}


class RoleCollector:
    """Turns batches of events into columns.

    Events keep their order within a trace category, and categories the order in
    which they first come; the rows of the tables follow it.

    Args:
        where: What an error names.
        folder: Where events wait on disk; the system's folder if not given.
    """

    def __init__(self, where: str, *, folder: Path | None = None) -> None:
        self._where = where
        self._folder = folder
        self._codes = _Codes()
        self._kernel_category: dict[str, int] = {}
        self._by_category: dict[str, _Category] = defaultdict(_Category)
        self._texts: dict[str, str] = {}
        self._blocks = _Blocks()
        self._merged_ranks: set[int] = set()
        self._timeless = 0
        self._lengthless = 0
        self._seen = 0

    def add(self, events: Iterable[Event]) -> None:
        """Take one batch; events that are not complete (``ph`` X) or not used are skipped."""
        rows = list(events)
        # Sorted out by position, because a loop over all events costs as much as decoding them.
        codes = _Codes()
        kinds = [event.cat if event.ph == "X" else "" for event in rows]
        code = np.fromiter(map(codes.__getitem__, kinds), np.int64, len(rows))
        for category in codes:
            if category.lower() in _USED:
                places = np.flatnonzero(code == codes[category])
                chosen = [rows[place] for place in places.tolist()]
                self._add_category(category, chosen, (places + self._seen).astype(np.int32))
        self._seen += len(rows)

    def finish(self, base_ns: int) -> RoledEvents:
        """Return all events, with the time base of the file added.

        Raises:
            TraceFormatError: Most events have no time stamp that can be read.
        """
        if self._timeless > sum(one.count for one in self._by_category.values()):
            raise TraceFormatError(
                f"{self._timeless} events, which is most, have no time stamp that can be read",
                where=self._where,
                remedy=EXPORT_AGAIN,
            )
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

        def spilled(wanted: Container[str]) -> SpilledEvents:
            spills = [one.spill for one in self._pick(wanted) if one.spill is not None]
            return SpilledEvents(spills, base_ns)

        return RoledEvents(
            names=list(self._codes),
            device=joined(device),
            launch=spilled(_LAUNCH),
            operator=spilled(_OPERATOR),
            host_note=joined(self._pick({_HOST_NOTE})),
            device_note=joined(self._pick({_DEVICE_NOTE})),
            communication=communication,
            merged_ranks=frozenset(self._merged_ranks),
            timeless=self._timeless,
            lengthless=self._lengthless,
        )

    def close(self) -> None:
        """Give the space on disk back; what ``finish`` returned can then no longer be read."""
        for one in self._by_category.values():
            if one.spill is not None:
                one.spill.close()

    def _pick(self, wanted: Container[str]) -> list[_Category]:
        return [one for name, one in self._by_category.items() if name.lower() in wanted]

    def _add_category(
        self, category: str, rows: Sequence[Event], position: npt.NDArray[np.int32]
    ) -> None:
        start, rows, position = self._timed(rows, position)
        if not rows:
            return
        args = [event.args or _NO_ARGS for event in rows]
        into = self._by_category[category]
        role = category.lower()
        columns: dict[str, Any] = {"start": start}
        columns |= {"position": position} | self._named_columns(rows)
        if role in _LAUNCH:
            columns["correlation"] = to_integers([a.correlation for a in args])
            called = DeviceInterface.DRIVER if role in _DRIVER else DeviceInterface.RUNTIME
            columns["category"] = np.full(len(rows), INTERFACES.index(called))
        else:
            columns["external_id"] = to_integers([a.external_id for a in args])
        if role == _DEVICE_NOTE:
            columns["device"] = to_integers([event.pid for event in rows], bits=32)
        if role in CATEGORY_OF_EVENT:
            columns |= self._device_columns(rows, args)
            columns |= _transfer_columns(role, args)
            columns["category"] = self._category_codes(into, CATEGORY_OF_EVENT[role], rows)
        else:
            columns["thread"] = to_integers([event.tid for event in rows])
        if role in _SPILLED:
            if into.spill is None:
                types = {name: values.dtype for name, values in columns.items()}
                into.spill = ColumnSpill(types, self._folder)
            into.spill.add(columns)
        else:
            into.parts.append(Events(**columns))
        into.count += len(rows)

    def _timed(
        self, rows: Sequence[Event], position: npt.NDArray[np.int32]
    ) -> tuple[IntArray, Sequence[Event], npt.NDArray[np.int32]]:
        """Return the starts, events and positions of those that have a time; count the others."""
        start, is_time = readable_stamps(decimal_texts([event.ts for event in rows]))
        if is_time.all():
            return start, rows, position
        kept = [event for event, is_kept in zip(rows, is_time.tolist(), strict=True) if is_kept]
        self._timeless += len(rows) - len(kept)
        return start, kept, position[is_time]

    def _durations(self, rows: Sequence[Event]) -> IntArray:
        """Return the lengths; one that is missing, negative or no number is 0 and counted."""
        known, is_known = readable_stamps(decimal_texts([event.dur for event in rows]))
        lengths = np.zeros(len(rows), dtype=np.int64)
        lengths[is_known] = np.maximum(known, 0)
        self._lengthless += len(rows) - len(known) + int((known < 0).sum())
        return lengths

    def _named_columns(self, rows: Sequence[Event]) -> dict[str, IntArray]:
        names = (event.name for event in rows)
        return {
            "name": np.fromiter(map(self._codes.__getitem__, names), np.int64, len(rows)),
            "dur": self._durations(rows),
        }

    def _device_columns(self, rows: Sequence[Event], args: list[EventArgs]) -> dict[str, IntArray]:
        self._merged_ranks.update(a.merged_rank for a in args if isinstance(a.merged_rank, int))
        pairs = list(zip(rows, args, strict=True))
        devices = [event.pid if a.device is None else a.device for event, a in pairs]
        streams = [event.tid if a.stream is None else a.stream for event, a in pairs]
        return {
            "correlation": to_integers([a.correlation for a in args]),
            "device": to_integers(devices, bits=32),
            "stream": to_integers(streams),
            "blocks": np.fromiter((self._blocks[bytes(a.grid)] for a in args), np.int64, len(args)),
        }

    def _category_codes(
        self, into: _Category, default: KernelCategory, rows: Sequence[Event]
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
        """Return arguments that hold no part of the file's text, and each list of members once."""
        args.grid = msgspec.Raw(b"")
        if isinstance(args.group_ranks, str):
            args.group_ranks = self._texts.setdefault(args.group_ranks, args.group_ranks)
        return args


def _transfer_columns(role: str, args: list[EventArgs]) -> dict[str, Any]:
    """Return what only copies, memory sets and synchronisation rows have."""
    count = len(args)
    columns: dict[str, Any] = {name: np.full(count, -1) for name in _WAITS}
    columns |= {"size_bytes": np.full(count, -1), "rate_bytes_per_s": np.full(count, np.nan)}
    category = CATEGORY_OF_EVENT[role]
    if category in (KernelCategory.MEMCPY, KernelCategory.MEMSET):
        columns["size_bytes"] = to_integers([a.size_bytes for a in args])
        columns["rate_bytes_per_s"] = to_floats([a.rate_gb_per_s for a in args]) * _BYTES_PER_GB
    if category == KernelCategory.SYNC:
        columns |= {name: to_integers([getattr(a, name) for a in args]) for name in _WAITS}
    return columns


class _Blocks(dict[bytes, int]):
    """The number of thread blocks of each grid, by its text; -1 where it is no list of numbers."""

    def __missing__(self, text: bytes) -> int:
        sizes = [int(size) for size in re.findall(rb"\d{1,10}", text)]
        self[text] = min(prod(sizes), _MOST_BLOCKS) if sizes else -1
        return self[text]


class _Codes(dict[str, int]):
    """A number for each distinct name, in the order in which they come."""

    def __missing__(self, name: str) -> int:
        code = self[name] = len(self)
        return code
