"""Snapshots of PyTorch's device allocator, reduced to a few moments.

A snapshot holds the blocks at its own time, and the newest actions of the allocator before
it, if those were recorded. What was allocated when is found backwards from the end, so
that a history of which the beginning is lost still gives true sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.analyze.wording.words import counted
from meshscope.probe.schema.errors import TraceFormatError

from ..detect import DAMAGED_JSON, InputFile
from ..kineto.events import to_int
from ..plain_pickle import load_plain
from .moments import CATEGORIES, Failure, MemoryRecord, Moment, share

IntArray = npt.NDArray[np.int64]

MOST_BYTES = 256 << 20
"""Larger snapshots, unpacked, are refused: the whole is in memory."""
MOST_OPERATIONS = 128_000_000
"""Of a pickle: more than a snapshot of that size has."""
_PICKLE = b"\x80"
_OTHER = CATEGORIES.index("other")
_UNKNOWN = len(CATEGORIES)
"""Category of what has no stack."""
_FRAMES_SHOWN = 3
_BY_FRAME: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
    ("optimizer", lambda name, file: "/optim/" in file and name != "zero_grad"),
    (
        "gradients",
        lambda name, file: (
            name in ("_engine_run_backward", "run_backward")
            or "torch::autograd::Engine" in name
            or (name == "backward" and "/autograd/" in file)
        ),
    ),
    (
        "parameters",
        lambda name, file: (
            name in ("reset_parameters", "load_state_dict", "_apply")
            or (name == "__init__" and "/nn/modules/" in file)
        ),
    ),
    (
        "activations",
        lambda name, file: name in ("forward", "_call_impl", "_wrapped_call_impl"),
    ),
)
"""What allocated a block, by the innermost frame of its stack that tells."""
_GROWS = frozenset({"segment_alloc", "segment_map"})
_SHRINKS = frozenset({"segment_free", "segment_unmap"})
_MOST_SIZE = 1 << 53
_NS_PER_US = 1000


def read_snapshot(file: InputFile) -> MemoryRecord:
    """Read a snapshot, as pickle or JSON; nothing in it is executed.

    Raises:
        TraceFormatError: It is damaged, does more than hold values, is laid out
            differently, or is too large.
    """
    snapshot = _plain(file)
    if not isinstance(snapshot, dict):
        raise _unreadable("it is no dict", file.label)
    segments = [one for one in _list(snapshot.get("segments")) if isinstance(one, dict)]
    traces = [_list(trace) for trace in _list(snapshot.get("device_traces"))]
    devices = _Devices.of(segments, traces)
    if devices is None:
        raise _unreadable("it has neither segments nor actions", file.label)
    blocks = list(_blocks(devices.segments))
    history = _History(devices.trace, blocks)
    notes = [*devices.notes, *history.notes(), *_rounding(blocks)]
    reserved = sum(_size(one.get("total_size")) for one in devices.segments)
    failures = history.failures(reserved)
    capacity = max(((one.reserved_bytes or 0) + one.free_bytes for one in failures), default=None)
    if capacity is None:
        notes.append("a snapshot does not say what its device has: the headroom is not known")
    else:
        notes.append("the capacity is what was reserved and free when an allocation failed")
    moments = [replace(one, capacity_bytes=capacity) for one in history.moments(reserved)]
    return MemoryRecord(moments, notes, failures)


def _plain(file: InputFile) -> Any:
    content = file.read(most_bytes=MOST_BYTES)
    if content.startswith(_PICKLE):
        return load_plain(content, file.label, most_operations=MOST_OPERATIONS)
    try:
        return msgspec.json.decode(content)
    except DAMAGED_JSON as error:
        raise _unreadable(str(error), file.label) from error


@dataclass(frozen=True, slots=True)
class _Devices:
    """The device whose memory is told: the one that has most."""

    segments: Sequence[Mapping[str, Any]]
    trace: Sequence[Any]
    notes: list[str]

    @classmethod
    def of(
        cls, segments: Sequence[Mapping[str, Any]], traces: Sequence[Sequence[Any]]
    ) -> _Devices | None:
        reserved: dict[int, int] = {}
        for one in segments:
            device = to_int(one.get("device", 0), 0, bits=32)
            reserved[device] = reserved.get(device, 0) + _size(one.get("total_size"))
        used = set(reserved) | {device for device, trace in enumerate(traces) if trace}
        if not used:
            return None
        most = max(sorted(used), key=lambda device: reserved.get(device, 0))
        notes = []
        if len(used) > 1:
            listed = ", ".join(map(str, sorted(used)))
            notes.append(
                f"the snapshot has devices {listed}; device {most}, which has most, is told"
            )
        own = [one for one in segments if to_int(one.get("device", 0), 0, bits=32) == most]
        return cls(own, traces[most] if 0 <= most < len(traces) else (), notes)


@dataclass(frozen=True, slots=True)
class _Block:
    """A block that is in use at the end, or waits for another stream."""

    address: int
    requested: int
    held: int
    """Bytes that the allocator gave for it."""
    category: int
    has_stack: bool


def _blocks(segments: Sequence[Mapping[str, Any]]) -> Iterator[_Block]:
    for segment in segments:
        address = to_int(segment.get("address"), 0)
        for block in _list(segment.get("blocks")):
            if not isinstance(block, dict):
                continue
            size = _size(block.get("size"))
            address = to_int(block.get("address"), address)
            if str(block.get("state", "")).startswith("active"):
                frames = _frames(block)
                category = _category(frames)
                requested = _size(block.get("requested_size", size))
                yield _Block(address, requested, size, category, bool(frames))
            address += size


class _History:
    """The recorded actions as changes, with the category of what they allocate or free.

    Args:
        trace: The actions of the device, oldest first.
        blocks: What is in use at the end.
    """

    def __init__(self, trace: Sequence[Any], blocks: Sequence[_Block]) -> None:
        self._time: list[int] = []
        self._change: list[int] = []
        self._category: list[int] = []
        self._reserved: list[int] = []
        self._failures: list[tuple[int, Mapping[str, Any]]] = []
        self._has_stacks = any(block.has_stack for block in blocks)
        self._last = np.zeros(len(CATEGORIES) + 1, dtype=np.int64)
        live: dict[int, int] = {}
        for action in trace:
            if isinstance(action, dict):
                self._take(action, live)
        for block in blocks:
            category = live.get(block.address, block.category)
            self._last[category] += block.requested

    def notes(self) -> list[str]:
        """Return what is not known, one clause each."""
        found = []
        if not self._time:
            found.append("no history of the allocator was recorded: only the end is known")
        if not self._has_stacks:
            found.append("no stacks were recorded: what the memory is for is not known")
        else:
            found.append("what memory is for is told by the code that allocated it")
        if self._failures:
            _, last = self._failures[-1]
            size, free = _size(last.get("size")), _size(last.get("device_free"))
            found.append(
                f"{counted(len(self._failures), 'allocation')} failed for want of memory; the last one "
                f"asked for {size / 2**20:.1f} MiB when {free / 2**20:.1f} MiB were free"
            )
        return found

    def moments(self, reserved_bytes: int) -> list[Moment]:
        """Return begin, peak and end; only the end where no history was recorded.

        Args:
            reserved_bytes: What the allocator holds at the end.
        """
        if not self._time:
            return [self._moment(0, self._last, reserved_bytes, None)]
        change = np.array(self._change, dtype=np.int64)
        grown = np.array(self._reserved, dtype=np.int64)
        allocated = int(self._last.sum()) - change.sum() + np.cumsum(change)
        reserved = reserved_bytes - grown.sum() + np.cumsum(grown)
        place = int(allocated.argmax())
        begin = self._after(-1)
        highest = max(int(allocated[place]), int(begin.sum()))
        peak = self._after(place) if allocated[place] >= begin.sum() else begin
        return [
            self._moment(self._time[0], begin, int(reserved[0] - grown[0]), int(begin.sum())),
            self._moment(self._time[place], peak, int(reserved[place]), highest),
            self._moment(self._time[-1], self._last, reserved_bytes, highest),
        ]

    def failures(self, reserved_bytes: int) -> list[Failure]:
        """Return the allocations that failed, with what was in use when they did.

        Args:
            reserved_bytes: What the allocator holds at the end.
        """
        change = np.append(0, np.cumsum(np.array(self._change, dtype=np.int64)))
        grown = np.append(0, np.cumsum(np.array(self._reserved, dtype=np.int64)))
        allocated = int(self._last.sum()) - change[-1] + change
        reserved = reserved_bytes - grown[-1] + grown
        return [
            Failure(
                time_ns=to_int(action.get("time_us"), 0, bits=52) * _NS_PER_US,
                size_bytes=_size(action.get("size")),
                free_bytes=_size(action.get("device_free")),
                allocated_bytes=max(int(allocated[place]), 0),
                reserved_bytes=max(int(reserved[place]), 0),
                place=_place(_frames(action)),
            )
            for place, action in self._failures
        ]

    def _take(self, action: Mapping[str, Any], live: dict[int, int]) -> None:
        """Take one action; a request to free counts when it is carried out."""
        kind, size = str(action.get("action")), _size(action.get("size"))
        address = to_int(action.get("addr"), -1)
        change, grown, category = 0, 0, _OTHER
        if kind == "alloc":
            frames = _frames(action)
            self._has_stacks |= bool(frames)
            category = live[address] = _category(frames)
            change = size
        elif kind == "free_completed":
            category = live.pop(address, _UNKNOWN)
            change = -size
        elif kind in _GROWS or kind in _SHRINKS:
            grown = size if kind in _GROWS else -size
        elif kind == "oom":
            self._failures.append((len(self._time), action))
            return
        else:
            return
        time_us = to_int(action.get("time_us"), 0, bits=52)
        self._time.append(time_us * _NS_PER_US)
        self._change.append(change)
        self._reserved.append(grown)
        self._category.append(category)

    def _after(self, place: int) -> IntArray:
        """Return the bytes by category behind an action, found backwards from the end."""
        later = slice(place + 1, None)
        category = np.array(self._category[later], dtype=np.int64)
        change = np.array(self._change[later], dtype=np.int64)
        totals = self._last.copy()
        np.subtract.at(totals, category, change)
        return totals

    def _moment(self, time_ns: int, totals: IntArray, reserved: int, peak: int | None) -> Moment:
        *sizes, unknown = (max(size, 0) for size in totals.tolist())
        by_category = dict(zip(CATEGORIES, sizes, strict=True))
        if unknown:
            # What has no stack may be for anything, so that nothing is known to be absent.
            by_category = {name: size for name, size in by_category.items() if size}
        return Moment(
            time_ns=time_ns,
            allocated_bytes=max(int(totals.sum()), 0),
            reserved_bytes=max(reserved, 0),
            peak_bytes=peak,
            by_category=by_category if self._has_stacks else None,
        )


def _rounding(blocks: Sequence[_Block]) -> list[str]:
    """Return what the allocator adds to the sizes that were asked for."""
    requested = sum(block.requested for block in blocks)
    held = sum(block.held for block in blocks)
    if held <= requested:
        return []
    return [
        f"sizes are those that were asked for; at the end the allocator gave {held - requested} "
        f"bytes ({share(held - requested, requested)}) more"
    ]


def _category(frames: Sequence[Any]) -> int:
    """Return what a block is for, by the innermost frame that tells."""
    if not frames:
        return _UNKNOWN
    for frame in frames:
        if isinstance(frame, dict):
            found = _of_frame(str(frame.get("name", "")), str(frame.get("filename", "")))
            if found is not None:
                return found
    return _OTHER


@lru_cache(maxsize=1 << 16)
def _of_frame(name: str, filename: str) -> int | None:
    """Return the category that one frame tells; a job has few different ones."""
    file = filename.replace("\\", "/")
    for category, tells in _BY_FRAME:
        if tells(name, file):
            return CATEGORIES.index(category)
    return None


def _place(frames: Sequence[Any]) -> str | None:
    """Return the innermost functions of a program, with file and line."""
    texts = [
        f"{frame.get('name', '?')} ({frame.get('filename', '?')}:{frame.get('line', '?')})"
        for frame in frames[:_FRAMES_SHOWN]
        if isinstance(frame, dict)
    ]
    return " < ".join(texts)[:_MOST_TEXT] or None


_MOST_TEXT = 400


def _frames(entry: Mapping[str, Any]) -> list[Any]:
    """Return the stack of an allocation, innermost first; older snapshots keep it in a list."""
    frames = entry.get("frames")
    if frames is None:
        history = _list(entry.get("history"))
        frames = history[0].get("frames") if history and isinstance(history[0], dict) else None
    return _list(frames)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _size(value: Any) -> int:
    size = to_int(value, 0)
    return size if 0 <= size < _MOST_SIZE else 0


def _unreadable(reason: str, where: str) -> TraceFormatError:
    return TraceFormatError(
        f"cannot be read as a memory snapshot ({reason})",
        where=where,
        remedy="Dump it again: torch.cuda.memory._dump_snapshot",
    )
