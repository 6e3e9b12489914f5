"""Snapshots of PyTorch's device allocator, reduced to a few moments.

A snapshot holds the blocks at its own time, and the newest actions of the allocator before
it, if those were recorded. What was allocated when is found backwards from the end, so
that a history of which the beginning is lost still gives true sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.limits import Limit
from ...wording.message import Text, message
from ..files import DAMAGED_JSON, InputFile
from ..kineto.events import to_int, to_integers
from ..plain_pickle import load_plain
from .moments import (
    CATEGORIES,
    UNKNOWN,
    Failure,
    MemoryRecord,
    Moment,
    as_list,
    categories,
    frames_of,
    place,
)

IntArray = npt.NDArray[np.int64]

MOST_SIZE = 1 << 53
_NS_PER_US = 1000
_TIME_BITS = 52
_ALLOC, _FREE, _GROW, _SHRINK, _FAIL, _IGNORED = range(6)
_KINDS = {
    "alloc": _ALLOC,
    # A request to free counts when it is carried out.
    "free_completed": _FREE,
    **dict.fromkeys(("segment_alloc", "segment_map"), _GROW),
    **dict.fromkeys(("segment_free", "segment_unmap"), _SHRINK),
    "oom": _FAIL,
}


@dataclass(frozen=True, slots=True)
class Block:
    """A block that is in use at the end, or waits for another stream."""

    address: int
    requested: int
    held: int
    """Bytes that the allocator gave for it."""
    category: int
    """Place in ``CATEGORIES``, or ``UNKNOWN``."""


@dataclass(frozen=True, slots=True)
class History:
    """The actions that change what is in use or reserved, oldest first; shapes ``[actions]``."""

    time_ns: IntArray
    change: IntArray
    """Bytes that come into use; less than 0 for those freed."""
    grown: IntArray
    """Bytes that the allocator takes from the device."""
    category: IntArray
    """Of what is allocated or freed."""
    has_stacks: bool
    failures: Sequence[tuple[int, Mapping[str, Any]]]
    """Allocations that failed, each with how many actions came before."""
    at_end: IntArray
    """Bytes in use at the end by category, the unknown one last."""

    @classmethod
    def of(cls, trace: Sequence[Any], blocks: Sequence[Block]) -> History:
        """Take the actions of one device, oldest first, and what is in use at the end."""
        actions = [action for action in trace if isinstance(action, dict)]
        kind = np.fromiter(map(_kind, actions), np.int64, len(actions))
        changes = np.flatnonzero(kind < _FAIL)
        fails = np.flatnonzero(kind == _FAIL)
        taken = [actions[one] for one in changes.tolist()]
        kind = kind[changes]
        time_us = to_integers([one.get("time_us") for one in taken], bits=_TIME_BITS)
        address = to_integers([one.get("addr") for one in taken])
        is_use, sign = kind <= _FREE, np.where((kind == _ALLOC) | (kind == _GROW), 1, -1)
        signed = sign * _sizes(taken)
        stacks = [frames_of(taken[one]) for one in np.flatnonzero(kind == _ALLOC).tolist()]
        category, live = _categories(kind, address, categories(stacks))
        at_end = np.zeros(len(CATEGORIES) + 1, dtype=np.int64)
        for block in blocks:
            action = live.get(block.address)
            if action is not None and category[action] == UNKNOWN:
                # Stacks of blocks in use are kept where those of actions are not.
                category[action] = block.category
            at_end[block.category if action is None else category[action]] += block.requested
        return cls(
            time_ns=np.maximum(time_us, 0) * _NS_PER_US,
            change=np.where(is_use, signed, 0),
            grown=np.where(is_use, 0, signed),
            category=category,
            has_stacks=any(map(len, stacks)) or any(one.category != UNKNOWN for one in blocks),
            failures=[
                (before, actions[one])
                for before, one in zip(
                    np.searchsorted(changes, fails).tolist(), fails.tolist(), strict=True
                )
            ],
            at_end=at_end,
        )

    def moments(self, reserved_bytes: int) -> list[Moment]:
        """Return begin, peak and end; only the end where no history was recorded.

        Args:
            reserved_bytes: What the allocator holds at the end.
        """
        if not len(self.time_ns):
            return [self._moment(0, self.at_end, reserved_bytes, None)]
        allocated, reserved = self._running(reserved_bytes)
        # Behind each action; the first place is before any.
        highest_at = int(allocated[1:].argmax()) + 1
        begin = self._after(0)
        highest = max(int(allocated[highest_at]), int(begin.sum()))
        peak = self._after(highest_at) if allocated[highest_at] >= begin.sum() else begin
        first, at_peak, last = self.time_ns[[0, highest_at - 1, -1]].tolist()
        return [
            self._moment(first, begin, int(reserved[0]), int(begin.sum())),
            self._moment(at_peak, peak, int(reserved[highest_at]), highest),
            self._moment(last, self.at_end, reserved_bytes, highest),
        ]

    def failed(self, reserved_bytes: int) -> list[Failure]:
        """Return the allocations that failed, with what was in use when they did.

        Args:
            reserved_bytes: What the allocator holds at the end.
        """
        allocated, reserved = self._running(reserved_bytes)
        return [
            Failure(
                time_ns=to_int(action.get("time_us"), 0, bits=_TIME_BITS) * _NS_PER_US,
                size_bytes=to_size(action.get("size")),
                free_bytes=to_size(action.get("device_free")),
                allocated_bytes=max(int(allocated[before]), 0),
                reserved_bytes=max(int(reserved[before]), 0),
                place=place(frames_of(action)),
            )
            for before, action in self.failures
        ]

    def _running(self, reserved_bytes: int) -> tuple[IntArray, IntArray]:
        """Return the bytes in use and those reserved before the first and after each action."""
        change = np.append(0, np.cumsum(self.change))
        grown = np.append(0, np.cumsum(self.grown))
        return self.at_end.sum() - change[-1] + change, reserved_bytes - grown[-1] + grown

    def _after(self, actions: int) -> IntArray:
        """Return the bytes by category after so many actions, found backwards from the end."""
        totals = self.at_end.copy()
        np.subtract.at(totals, self.category[actions:], self.change[actions:])
        return totals

    def _moment(self, time_ns: int, totals: IntArray, reserved: int, peak: int | None) -> Moment:
        *sizes, unknown = (max(one, 0) for one in totals.tolist())
        by_category = dict(zip(CATEGORIES, sizes, strict=True))
        if unknown:
            # What has no stack may be for anything, so that nothing is known to be absent.
            by_category = {name: one for name, one in by_category.items() if one}
        return Moment(
            time_ns=time_ns,
            allocated_bytes=max(int(totals.sum()), 0),
            reserved_bytes=max(reserved, 0),
            peak_bytes=peak,
            by_category=by_category if self.has_stacks else None,
        )


def to_size(value: object) -> int:
    """Return a number of bytes; 0 for what cannot be one."""
    found = to_int(value, 0)
    return found if 0 <= found < MOST_SIZE else 0


def _kind(action: Mapping[str, Any]) -> int:
    return _KINDS.get(str(action.get("action")), _IGNORED)


def _sizes(actions: Sequence[Mapping[str, Any]]) -> IntArray:
    found = to_integers([one.get("size") for one in actions])
    return np.where((found >= 0) & (found < MOST_SIZE), found, 0)


def _categories(
    kind: IntArray, address: IntArray, allocated: IntArray
) -> tuple[IntArray, dict[int, int]]:
    """Return the category of each action, and which one allocated each address in use at the end.

    What is freed is what was allocated last at its address.

    Args:
        kind: Of each action.
        address: Of each action.
        allocated: The category of each allocation.
    """
    category = np.full(len(kind), CATEGORIES.index("other"))
    category[kind == _ALLOC] = allocated
    uses = np.flatnonzero(kind <= _FREE)
    uses = uses[np.argsort(address[uses], kind="stable")]
    is_free, at = kind[uses] == _FREE, address[uses]
    starts, ends = np.ones(len(uses), dtype=bool), np.ones(len(uses), dtype=bool)
    starts[1:] = ends[:-1] = at[1:] != at[:-1]
    frees = np.flatnonzero(is_free)
    # At the begin of an address, or behind another free, the allocation was not recorded.
    is_known = ~(starts[frees] | is_free[frees - 1])
    category[uses[frees]] = UNKNOWN
    category[uses[frees[is_known]]] = category[uses[frees[is_known] - 1]]
    live = uses[ends & ~is_free]
    return category, dict(zip(address[live].tolist(), live.tolist(), strict=True))


MOST_BYTES = 256 << 20
"""Larger snapshots, unpacked, are refused: the whole is in memory."""
MOST_OPERATIONS = 128_000_000
"""Of a pickle: more than a snapshot of that size has."""
_PICKLE = b"\x80"


def read_snapshot(file: InputFile) -> MemoryRecord:
    """Read a snapshot, as pickle or JSON; nothing in it is executed.

    Raises:
        TraceFormatError: It is damaged, does more than hold values, is laid out
            differently, or is too large.
    """
    snapshot = _plain(file)
    if isinstance(snapshot, list):
        # What torch.cuda.memory_snapshot returns: segments, without a history.
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, dict):
        raise _unreadable(message("defect.no_dict"), file.label)
    segments = [one for one in as_list(snapshot.get("segments")) if isinstance(one, dict)]
    traces = [as_list(trace) for trace in as_list(snapshot.get("device_traces"))]
    devices = _Devices.of(segments, traces)
    if devices is None:
        raise _unreadable(message("defect.no_segments"), file.label)
    blocks = _blocks(devices.segments)
    history = History.of(devices.trace, blocks)
    notes = [*devices.notes, *_notes(history), *_rounding(blocks)]
    reserved = sum(to_size(one.get("total_size")) for one in devices.segments)
    failures = history.failed(reserved)
    capacity = max(((one.reserved_bytes or 0) + one.free_bytes for one in failures), default=None)
    if capacity is None:
        notes.append(message("unknown.snapshot_headroom"))
    else:
        notes.append(message("assumed.capacity_of_failure"))
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
    """The device whose memory is shown: the one that has most."""

    segments: Sequence[Mapping[str, Any]]
    trace: Sequence[Any]
    notes: list[Limit]

    @classmethod
    def of(
        cls, segments: Sequence[Mapping[str, Any]], traces: Sequence[Sequence[Any]]
    ) -> _Devices | None:
        reserved: dict[int, int] = {}
        allocated: dict[int, int] = {}
        for one in segments:
            device = to_int(one.get("device", 0), 0, bits=32)
            reserved[device] = reserved.get(device, 0) + to_size(one.get("total_size"))
            used_bytes = to_size(one.get("allocated_size"))
            allocated[device] = allocated.get(device, 0) + used_bytes
        used = set(reserved) | {device for device, trace in enumerate(traces) if trace}
        if not used:
            return None
        most = max(sorted(used), key=lambda one: (reserved.get(one, 0), allocated.get(one, 0)))
        notes: list[Limit] = []
        if len(used) > 1:
            notes.append(message("scope.one_device", devices=sorted(used), shown=most))
        own = [one for one in segments if to_int(one.get("device", 0), 0, bits=32) == most]
        return cls(own, traces[most] if 0 <= most < len(traces) else (), notes)


def _blocks(segments: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return what is in use at the end, or waits for another stream."""
    found = [one for segment in segments for one in _in_use(segment)]
    category = categories([frames for *_, frames in found]).tolist()
    return [
        Block(address, requested, held, of)
        for (address, requested, held, _), of in zip(found, category, strict=True)
    ]


def _in_use(segment: Mapping[str, Any]) -> Iterator[tuple[int, int, int, list[Any]]]:
    """Yield address, bytes asked for, bytes given and stack of each block in use."""
    address = to_int(segment.get("address"), 0)
    for block in as_list(segment.get("blocks")):
        if not isinstance(block, dict):
            continue
        held = to_size(block.get("size"))
        address = to_int(block.get("address"), address)
        if str(block.get("state", "")).startswith("active"):
            yield address, to_size(block.get("requested_size", held)), held, frames_of(block)
        address += held


def _notes(history: History) -> list[Limit]:
    """Return what is not known, or inferred."""
    found: list[Limit] = []
    if not len(history.time_ns):
        found.append(message("missing.allocator_history"))
    if not history.has_stacks:
        found.append(message("unknown.purpose_of_memory"))
    else:
        found.append(message("assumed.purpose_of_memory"))
    if history.failures:
        _, last = history.failures[-1]
        asked, free = to_size(last.get("size")), to_size(last.get("device_free"))
        count = len(history.failures)
        found.append(
            message("scope.failed_allocations", count=count, asked_bytes=asked, free_bytes=free)
        )
    return found


def _rounding(blocks: Sequence[Block]) -> list[Limit]:
    """Return what the allocator adds to the sizes that were asked for."""
    requested = sum(block.requested for block in blocks)
    held = sum(block.held for block in blocks)
    if held <= requested:
        return []
    more = held - requested
    if not requested:
        return [message("scope.rounded_up_all", more_bytes=more)]
    return [message("scope.rounded_up", more_bytes=more, more=more / requested)]


def _unreadable(reason: Text, where: str) -> TraceFormatError:
    return TraceFormatError(
        message("refused.memory_snapshot", reason=reason),
        where=where,
        remedy=message("advice.dump_snapshot_again"),
    )
