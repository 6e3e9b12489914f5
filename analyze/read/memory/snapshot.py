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

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.limits import Limit
from ...wording.message import Text, message
from ..files import DAMAGED_JSON, InputFile
from ..kineto.events import to_int
from ..plain_pickle import load_plain
from .history import Block, History, to_size
from .moments import MemoryRecord
from .stacks import as_list, categories, frames_of

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
        for one in segments:
            device = to_int(one.get("device", 0), 0, bits=32)
            reserved[device] = reserved.get(device, 0) + to_size(one.get("total_size"))
        used = set(reserved) | {device for device, trace in enumerate(traces) if trace}
        if not used:
            return None
        most = max(sorted(used), key=lambda device: reserved.get(device, 0))
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
