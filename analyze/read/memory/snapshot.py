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

from meshscope.analyze.wording.words import counted
from meshscope.probe.schema.errors import TraceFormatError

from ..detect import DAMAGED_JSON, InputFile
from ..kineto.events import to_int
from ..plain_pickle import load_plain
from .history import Block, History, to_size
from .moments import MemoryRecord, share
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
        raise _unreadable("it is no dict", file.label)
    segments = [one for one in as_list(snapshot.get("segments")) if isinstance(one, dict)]
    traces = [as_list(trace) for trace in as_list(snapshot.get("device_traces"))]
    devices = _Devices.of(segments, traces)
    if devices is None:
        raise _unreadable("it has neither segments nor actions", file.label)
    blocks = _blocks(devices.segments)
    history = History.of(devices.trace, blocks)
    notes = [*devices.notes, *_notes(history), *_rounding(blocks)]
    reserved = sum(to_size(one.get("total_size")) for one in devices.segments)
    failures = history.failed(reserved)
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
            reserved[device] = reserved.get(device, 0) + to_size(one.get("total_size"))
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


def _notes(history: History) -> list[str]:
    """Return what is not known, one clause each."""
    found = []
    if not len(history.time_ns):
        found.append("no history of the allocator was recorded: only the end is known")
    if not history.has_stacks:
        found.append("no stacks were recorded: what the memory is for is not known")
    else:
        found.append("what memory is for is told by the code that allocated it")
    if history.failures:
        _, last = history.failures[-1]
        asked, free = to_size(last.get("size")), to_size(last.get("device_free"))
        found.append(
            f"{counted(len(history.failures), 'allocation')} failed for want of memory; the last "
            f"one asked for {asked / 2**20:.1f} MiB when {free / 2**20:.1f} MiB were free"
        )
    return found


def _rounding(blocks: Sequence[Block]) -> list[str]:
    """Return what the allocator adds to the sizes that were asked for."""
    requested = sum(block.requested for block in blocks)
    held = sum(block.held for block in blocks)
    if held <= requested:
        return []
    return [
        f"sizes are those that were asked for; at the end the allocator gave {held - requested} "
        f"bytes ({share(held - requested, requested)}) more"
    ]


def _unreadable(reason: str, where: str) -> TraceFormatError:
    return TraceFormatError(
        f"cannot be read as a memory snapshot ({reason})",
        where=where,
        remedy="Dump it again: torch.cuda.memory._dump_snapshot",
    )
