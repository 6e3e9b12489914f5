"""The events of one profiler file as columns of numbers, by the role that they play, on disk while they are many.

A large file has millions of operators, and which step or kernel they belong to is known
only when all of it was read. Meanwhile their numbers wait in a nameless temporary
file, which vanishes with the process, however that ends.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.terms import DeviceInterface, KernelCategory

from ..far_times import Window
from ..kernel_names import CATEGORY_OF_EVENT
from .events import EventArgs, to_floats, to_integers

Columns = dict[str, npt.NDArray[Any]]

_IN_MEMORY_BYTES = 4 << 20
"""What smaller files have to spill stays in memory."""
_LEAST_ROWS = 1 << 16
"""Rows that are read back at once, unless there are fewer."""


class ColumnSpill:
    """Rows of numeric columns, appended in batches and read back in their order.

    Args:
        types: Names of the columns and what they hold.
        folder: Where the temporary file is made; the system's folder if not given.
    """

    def __init__(self, types: Mapping[str, np.dtype[Any]], folder: Path | None) -> None:
        self._types = dict(types)
        # Closed with this object: there is no scope that it could be bound to.
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115
            _IN_MEMORY_BYTES, dir=None if folder is None else str(folder)
        )
        self._batches: list[int] = []

    def __len__(self) -> int:
        return sum(self._batches)

    def add(self, rows: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append one batch.

        Raises:
            OSError: The disk is full.
        """
        for name, kind in self._types.items():
            self._file.write(np.asarray(rows[name], dtype=kind).tobytes())
        self._batches.append(len(next(iter(rows.values()))))

    def close(self) -> None:
        """Give the space back."""
        self._file.close()

    def read(self) -> Iterator[Columns]:
        """Yield all rows in pieces of bounded size."""
        self._file.seek(0)
        held: list[Columns] = []
        rows = 0
        for count in self._batches:
            held.append({name: self._column(kind, count) for name, kind in self._types.items()})
            rows += count
            if rows >= _LEAST_ROWS:
                yield self._joined(held)
                held, rows = [], 0
        if held:
            yield self._joined(held)

    def _column(self, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._file.read(kind.itemsize * count), kind)

    def _joined(self, parts: list[Columns]) -> Columns:
        return {name: np.concatenate([part[name] for part in parts]) for name in self._types}


IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
LAUNCH_CALLS = re.compile(r".*launch", re.IGNORECASE)
"""Calls of a host that give a device work, of any runtime."""
CATEGORIES = tuple(KernelCategory)
"""What the category codes of device activities stand for."""
INTERFACES = tuple(DeviceInterface)
"""What the category codes of host calls stand for."""
_NONE: IntArray = np.empty(0, dtype=np.int64)
_NO_NUMBER: FloatArray = np.empty(0, dtype=np.float64)


NO_LENGTH = -1
"""Length of the work of a device that has none that can be read."""


class Intervals(msgspec.Struct, frozen=True):
    """Start and duration of a list of events, ns."""

    start: IntArray
    dur: IntArray

    @property
    def end(self) -> IntArray:
        """Return the ends."""
        return self.start + self.dur


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one role, one element each; columns that the role does not use are empty."""

    start: IntArray
    name: IntArray = msgspec.field(default_factory=lambda: _NONE)
    """Codes of the names."""
    dur: IntArray = msgspec.field(default_factory=lambda: _NONE)
    """Lengths; ``NO_LENGTH`` where the work of a device has none, as long as that is not left out."""
    external_id: IntArray = msgspec.field(default_factory=lambda: _NONE)
    """The profiler's own id, -1 if it has none."""
    correlation: IntArray = msgspec.field(default_factory=lambda: _NONE)
    thread: IntArray = msgspec.field(default_factory=lambda: _NONE)
    device: IntArray = msgspec.field(default_factory=lambda: _NONE)
    stream: IntArray = msgspec.field(default_factory=lambda: _NONE)
    category: IntArray = msgspec.field(default_factory=lambda: _NONE)
    """Positions in ``CATEGORIES``, of host calls in ``INTERFACES``."""
    blocks: IntArray = msgspec.field(default_factory=lambda: _NONE)
    """Thread blocks of a kernel's grid, -1 where they are not recorded."""
    position: npt.NDArray[np.int32] = msgspec.field(default_factory=lambda: _NONE.astype(np.int32))
    """Places among all events of the file."""
    size_bytes: IntArray = msgspec.field(default_factory=lambda: _NONE)
    """What a copy or memory set moved, -1 for others; so are the next three."""
    rate_bytes_per_s: FloatArray = msgspec.field(default_factory=lambda: _NO_NUMBER)
    wait_stream: IntArray = msgspec.field(default_factory=lambda: _NONE)
    wait_correlation: IntArray = msgspec.field(default_factory=lambda: _NONE)
    shapes: IntArray = msgspec.field(default_factory=lambda: _NONE)
    """Codes of the input shapes of an operator, -1 where they are not recorded."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def time(self) -> Intervals:
        """Return the intervals."""
        return Intervals(self.start, self.dur)

    def named(self, codes: Iterable[int]) -> Events:
        """Return the events whose name is one of these."""
        return self.at(np.flatnonzero(np.isin(self.name, np.fromiter(codes, np.int64))))

    def at(self, places: npt.NDArray[np.intp]) -> Events:
        """Return the events at some positions."""
        columns = {name: getattr(self, name) for name in self.__struct_fields__}
        return Events(**{key: c[places] if len(c) else c for key, c in columns.items()})

    def by_start(self) -> Events:
        """Return the events in the order in which they begin."""
        return self.at(np.argsort(self.start, kind="stable"))

    @classmethod
    def joined(cls, parts: Sequence[Events], base_ns: int) -> Events:
        """Return the events of all parts in their order, their times moved by ``base_ns``."""
        if not parts:
            return cls(start=_NONE)
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in cls.__struct_fields__
        }
        columns["start"] += base_ns
        return cls(**columns)


class SpilledEvents(msgspec.Struct, frozen=True):
    """Events of a role of which one file may have more than fit in memory."""

    spills: Sequence[ColumnSpill]
    base_ns: int
    """Added to every start."""
    is_possible: Callable[[Events], npt.NDArray[np.bool_]] | None = None
    """Which events are kept; all by default."""

    def __len__(self) -> int:
        return sum(map(len, self.spills))

    def parts(self) -> Iterator[Events]:
        """Yield all events in their order, a bounded number at a time."""
        for spill in self.spills:
            for columns in spill.read():
                part = Events(**columns | {"start": columns["start"] + self.base_ns})
                if self.is_possible is not None:
                    part = part.at(np.flatnonzero(self.is_possible(part)))
                yield part

    def select(self, is_wanted: Callable[[Events], npt.NDArray[np.bool_]]) -> PlacedEvents:
        """Return the events that are wanted, which must be few enough for memory."""
        kept, places, before = [], [], 0
        for part in self.parts():
            chosen = np.flatnonzero(is_wanted(part))
            kept.append(part.at(chosen))
            places.append(chosen + before)
            before += len(part)
        return PlacedEvents(Events.joined(kept, 0), np.concatenate([_NONE, *places]))


class PlacedEvents(msgspec.Struct, frozen=True):
    """Some events of a list, and their positions in it."""

    events: Events
    place: IntArray


class RoledEvents(msgspec.Struct, frozen=True):
    """The complete events of one file, by what we use them for."""

    names: list[str]
    """Distinct names, at the positions that the columns call codes."""
    device: Events
    launch: SpilledEvents
    operator: SpilledEvents
    host_note: Events
    device_note: Events
    python: Events
    """Python functions of ``LONG_PYTHON_US`` and more."""
    communication: dict[int, EventArgs]
    """Arguments of the device events that communicate, by position."""
    merged_ranks: frozenset[int]
    """Ranks that device events name, as they do in files joined by a tool."""
    timeless: int
    """Complete events without a time stamp that can be read; left out."""
    processes: tuple[str, ...] = ()
    """Processes that ran operators: several where a file holds the events of several ranks."""
    lengthless: int = 0
    """Events of the host without a length, or with a negative one; they count as 0 ns."""
    unknown: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Events of unknown categories: how many, and how many of them ran on a device."""
    is_ascend: bool = False
    """True where device rows have no category but a task type, as the Ascend profiler writes them."""
    unplaced: int = 0
    """Complete events without a category that are not used."""
    overhead: Events = msgspec.field(
        default_factory=lambda: Events(start=_NONE, dur=_NONE, name=_NONE)
    )
    """Work of the profiler itself and of the driver, such as a flush of buffers."""
    doubtful: Window | None = None
    """Where most events begin, if some are impossibly far from there or impossibly long."""
    shapes: list[str] = msgspec.field(default_factory=list)
    """Distinct input shapes of operators, at the positions that the columns call codes."""

    def names_like(self, pattern: re.Pattern[str]) -> dict[int, re.Match[str]]:
        """Return the codes of the names that begin as the pattern says, with the match."""
        pairs = ((code, pattern.match(name)) for code, name in enumerate(self.names))
        return {code: match for code, match in pairs if match}


_WAITS = ("wait_stream", "wait_correlation")
_BYTES_PER_GB = 1e9
_MOST_BLOCKS = 1 << 62


def transfer_columns(role: str, args: Sequence[EventArgs]) -> dict[str, Any]:
    """Return what only copies, memory sets and synchronisation rows have."""
    count = len(args)
    columns: dict[str, Any] = {name: np.full(count, -1) for name in _WAITS}
    columns |= {"size_bytes": np.full(count, -1), "rate_bytes_per_s": np.full(count, np.nan)}
    category = CATEGORY_OF_EVENT.get(role, KernelCategory.UNKNOWN)
    if category in (KernelCategory.MEMCPY, KernelCategory.MEMSET):
        columns["size_bytes"] = to_integers([a.size_bytes for a in args])
        columns["rate_bytes_per_s"] = to_floats([a.rate_gb_per_s for a in args]) * _BYTES_PER_GB
    if category == KernelCategory.SYNC:
        columns |= {name: to_integers([getattr(a, name) for a in args]) for name in _WAITS}
    return columns


class Blocks(dict[bytes, int]):
    """The number of thread blocks of each grid, by its text; -1 where it is no list of numbers."""

    def __missing__(self, text: bytes) -> int:
        sizes = [int(size) for size in re.findall(rb"\d{1,10}", text)]
        self[text] = min(prod(sizes), _MOST_BLOCKS) if sizes else -1
        return self[text]
