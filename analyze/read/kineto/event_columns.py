"""The events of one profiler file as columns of numbers, by the role that they play."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.terms import DeviceInterface, KernelCategory

from .events import EventArgs
from .spill import ColumnSpill

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
CATEGORIES = tuple(KernelCategory)
"""What the category codes of device activities stand for."""
INTERFACES = tuple(DeviceInterface)
"""What the category codes of host calls stand for."""
_NONE: IntArray = np.empty(0, dtype=np.int64)
_NO_NUMBER: FloatArray = np.empty(0, dtype=np.float64)


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
    """Positions in ``CATEGORIES``, of host calls in ``INTERFACES``."""
    blocks: IntArray = field(default_factory=lambda: _NONE)
    """Thread blocks of a kernel's grid, -1 where they are not recorded."""
    position: npt.NDArray[np.int32] = field(default_factory=lambda: _NONE.astype(np.int32))
    """Places among all events of the file."""
    size_bytes: IntArray = field(default_factory=lambda: _NONE)
    """What a copy or memory set moved, -1 for others; so are the next three."""
    rate_bytes_per_s: FloatArray = field(default_factory=lambda: _NO_NUMBER)
    wait_stream: IntArray = field(default_factory=lambda: _NONE)
    wait_correlation: IntArray = field(default_factory=lambda: _NONE)
    shapes: IntArray = field(default_factory=lambda: _NONE)
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
class SpilledEvents:
    """Events of a role of which one file may have more than fit in memory."""

    spills: Sequence[ColumnSpill]
    base_ns: int
    """Added to every start."""

    def __len__(self) -> int:
        return sum(map(len, self.spills))

    def parts(self) -> Iterator[Events]:
        """Yield all events in their order, a bounded number at a time."""
        for spill in self.spills:
            for columns in spill.read():
                yield Events(**columns | {"start": columns["start"] + self.base_ns})

    def select(self, is_wanted: Callable[[Events], npt.NDArray[np.bool_]]) -> PlacedEvents:
        """Return the events that are wanted, which must be few enough for memory."""
        kept, places, before = [], [], 0
        for part in self.parts():
            chosen = np.flatnonzero(is_wanted(part))
            kept.append(part.at(chosen))
            places.append(chosen + before)
            before += len(part)
        return PlacedEvents(Events.joined(kept, 0), np.concatenate([_NONE, *places]))


@dataclass(frozen=True, slots=True)
class PlacedEvents:
    """Some events of a list, and their positions in it."""

    events: Events
    place: IntArray


@dataclass(frozen=True, slots=True)
class RoledEvents:
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
    lengthless: int = 0
    """Complete events without a length, or with a negative one; they count as 0 ns."""
    unknown: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Events of unknown categories: how many, and how many of them ran on a device."""
    is_ascend: bool = False
    """True where device rows have no category but a task type, as the Ascend profiler writes them."""
    unplaced: int = 0
    """Complete events without a category that are not used."""
    shapes: list[str] = field(default_factory=list)
    """Distinct input shapes of operators, at the positions that the columns call codes."""

    def names_like(self, pattern: re.Pattern[str]) -> dict[int, re.Match[str]]:
        """Return the codes of the names that begin as the pattern says, with the match."""
        pairs = ((code, pattern.match(name)) for code, name in enumerate(self.names))
        return {code: match for code, match in pairs if match}
