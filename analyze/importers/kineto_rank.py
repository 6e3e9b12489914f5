"""One Kineto file as the tables of one rank."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import KERNEL, NAME, OP, SPAN, STEP
from meshscope.probe.schema.terms import KernelCategory

from .detect import InputFile
from .kineto_columns import (
    DeviceColumns,
    Intervals,
    RoledEvents,
    StepWindows,
    device_columns,
    external_ids,
    first_match,
    recognised_spans,
    split_roles,
    step_windows,
    take_or,
    times,
)
from .kineto_communication import IssueContext, RankCommunication, rank_communication
from .kineto_events import DistributedInfo, Event, KinetoFile, decode, to_int

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_. ]?(\d{1,9})(?!\d)", re.IGNORECASE)
_HOST_COLLECTIVE = re.compile(r"(?:gloo|mpi):")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """What one file gave."""

    label: str
    rank: int
    world_size: int | None
    device_name: str | None
    has_base_time: bool
    device_events: int
    tables: dict[str, pa.Table]
    communication: RankCommunication
    notes: list[str]
    """What is missing on this rank, one clause each."""


def read_rank_file(file: InputFile, *, default_rank: int | None) -> RankFile:
    """Read one file completely.

    Args:
        file: A file that was recognised as Kineto JSON.
        default_rank: Rank of a file that does not say which one it is.

    Raises:
        TraceFormatError: It cannot be decoded, holds no profiler events, or holds several ranks.
    """
    content = decode(file.read(), file.label)
    roles = split_roles(content.trace_events)
    if not (roles.device or roles.operator or roles.host_note):
        raise TraceFormatError("holds no events of the PyTorch profiler", where=file.label)
    _refuse_merged(roles.device, file.label)
    info = content.distributed_info or DistributedInfo()
    notes: list[str] = []
    rank = _rank(info, file.name, default_rank, notes)
    if rank is None:
        raise TraceFormatError(
            "names no rank in its header or file name",
            where=file.label,
            remedy="Put rank<N> into the file name",
        )
    return _read_events(file.label, rank, roles, content, notes)


def _read_events(
    label: str, rank: int, roles: RoledEvents, content: KinetoFile, notes: list[str]
) -> RankFile:
    info, base_ns = (
        content.distributed_info or DistributedInfo(),
        content.base_time_nanoseconds or 0,
    )
    operators = times(roles.operator, base_ns, label)
    device = device_columns(roles, operators, base_ns, label)
    steps = step_windows(roles, base_ns, label)
    announced = times(roles.host_note, base_ns, label)
    issued = IssueContext.of(device, steps, roles.host_note, announced)
    names = pa.array([*device.names, *(e.name for e in roles.operator)], pa.string())
    names = names.dictionary_encode()
    name_id, count = names.indices.to_numpy(), len(device.names)
    return RankFile(
        label=label,
        rank=rank,
        world_size=_world_size(info),
        device_name=_device_name(content, device),
        has_base_time=base_ns != 0,
        device_events=count,
        tables={
            "name": _name_table(rank, names.dictionary),
            "kernel": _kernel_table(rank, device, issued.step, name_id[:count]),
            "op": _op_table(rank, roles, operators, steps, name_id[count:]),
            "step": _step_table(rank, steps),
            "span": _span_table(rank, roles, steps, base_ns, label),
        },
        communication=rank_communication(rank, info, roles.device, device, issued),
        notes=[*notes, *_notes(roles, device, steps)],
    )


def _refuse_merged(device: list[Event], where: str) -> None:
    """Refuse a file in which a tool has joined the events of several ranks.

    Raises:
        TraceFormatError: It is such a file.
    """
    ranks = {e.args.merged_rank for e in device if e.args and isinstance(e.args.merged_rank, int)}
    if len(ranks) > 1:
        raise TraceFormatError(
            f"holds the events of {len(ranks)} ranks merged into one file",
            where=where,
            remedy="Give the file that each rank wrote",
        )


def _rank(info: DistributedInfo, name: str, default: int | None, notes: list[str]) -> int | None:
    """Return the rank by the header, else by ``rank`` or ``worker`` and a number in the name."""
    in_name = _RANK_IN_NAME.search(name)
    by_name = int(in_name[1]) if in_name else None
    by_header = None if info.rank is None else to_int(info.rank, bits=32)
    if by_header is not None and by_header >= 0:
        if by_name is not None and by_name != by_header:
            notes.append(f"the file is named for rank {by_name}, its header decides")
        return by_header
    if by_name is not None:
        notes.append("the header names no rank, the file name does")
        return by_name
    notes.append("neither the header nor the file name names a rank")
    return default


def _world_size(info: DistributedInfo) -> int | None:
    size = to_int(info.world_size, 0, bits=32)
    if size > 0:
        return size
    listed = [len(group.ranks) for group in info.pg_config or () if isinstance(group.ranks, list)]
    return max(listed, default=None)


def _device_name(content: KinetoFile, device: DeviceColumns) -> str | None:
    """Return the model of the device that the rank used most."""
    used = Counter(device.device.tolist()).most_common(1)
    by_id = {
        to_int(p.id): str(p.name) for p in content.device_properties or () if p.name is not None
    }
    if used and used[0][0] in by_id:
        return by_id[used[0][0]]
    return next(iter(by_id.values()), None)


def _notes(roles: RoledEvents, device: DeviceColumns, steps: StepWindows) -> list[str]:
    notes = []
    if steps.is_whole_file:
        notes.append("no ProfilerStep is marked, so the whole file is step 0")
    if not device.names:
        notes.append("there are no device events")
    unlinked = int((~device.is_linked).sum())
    if unlinked:
        notes.append(
            f"{unlinked} of {len(device.names)} device events have no launch; they are kept"
        )
    if roles.timeless:
        notes.append(f"{roles.timeless} events without a time stamp are left out")
    unseen = device.category.count(KernelCategory.UNKNOWN)
    if unseen:
        notes.append(
            f"{unseen} kernels communicate without a collective library and count as computation"
        )
    on_host = sum(_HOST_COLLECTIVE.match(note.name) is not None for note in roles.host_note)
    if on_host:
        notes.append(f"{on_host} collectives on the host have no device kernel and are left out")
    return notes


def _name_table(rank: int, names: pa.Array) -> pa.Table:
    columns = {"rank": np.full(len(names), rank), "name_id": np.arange(len(names)), "name": names}
    return NAME.conform(pa.table(columns))


def _kernel_table(
    rank: int, device: DeviceColumns, step: npt.NDArray[np.int64], name_id: npt.NDArray[np.int32]
) -> pa.Table:
    count = len(device.names)
    columns = {
        "rank": np.full(count, rank),
        "step": step,
        "device": device.device,
        "stream": device.stream,
        "name_id": name_id,
        "category": pa.array([category.value for category in device.category], pa.string()),
        "start_ns": device.time.start,
        "dur_ns": device.time.dur,
        "correlation": device.correlation,
        "op_id": device.operator,
        "launch_ns": pa.array(device.launch, mask=~device.is_linked),
    }
    return KERNEL.conform(pa.table(columns))


def _op_table(
    rank: int,
    roles: RoledEvents,
    time: Intervals,
    steps: StepWindows,
    name_id: npt.NDArray[np.int32],
) -> pa.Table:
    count = len(roles.operator)
    columns = {
        "rank": np.full(count, rank),
        "step": steps.step_of(time.start),
        "op_id": np.arange(count),
        "name_id": name_id,
        "thread": np.array([to_int(event.tid) for event in roles.operator], dtype=np.int64),
        "start_ns": time.start,
        "dur_ns": time.dur,
    }
    return OP.conform(pa.table(columns))


def _step_table(rank: int, steps: StepWindows) -> pa.Table:
    columns = {
        "rank": np.full(len(steps.number), rank),
        "step": steps.number,
        "start_ns": steps.start,
        "dur_ns": steps.end - steps.start,
    }
    return STEP.conform(pa.table(columns))


def _span_table(
    rank: int, roles: RoledEvents, steps: StepWindows, base_ns: int, where: str
) -> pa.Table:
    """Return the recognised annotations; one on the device has the step of its host twin."""
    parts = []
    announced = times(roles.host_note, base_ns, where)
    for kind, events in recognised_spans(roles):
        time = times(events, base_ns, where)
        host = first_match(external_ids(events), external_ids(roles.host_note), announced.start)
        issued = take_or(announced.start, host, time.start)
        columns = {
            "rank": np.full(len(events), rank),
            "step": steps.step_of(issued),
            "kind": pa.array([kind.value] * len(events), pa.string()),
            **{name: np.full(len(events), -1) for name in ("stage", "chunk", "microbatch")},
            "start_ns": time.start,
            "dur_ns": time.dur,
        }
        parts.append(SPAN.conform(pa.table(columns)))
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()
