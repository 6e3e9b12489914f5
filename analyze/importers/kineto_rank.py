"""One Kineto file as the tables of one rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import KERNEL, NAME, OP, SPAN, STEP
from meshscope.probe.schema.terms import KernelCategory

from .detect import InputFile
from .kineto_columns import (
    DeviceLinks,
    StepWindows,
    device_links,
    first_match,
    recognised_spans,
    step_windows,
    take_or,
)
from .kineto_communication import IssueContext, RankCommunication, rank_communication
from .kineto_events import DistributedInfo, KinetoHeader, to_int
from .kineto_roles import CATEGORIES, Events, IntArray, RoleCollector, RoledEvents
from .kineto_stream import CHUNK_BYTES, EventStream

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


def read_rank_file(
    file: InputFile, *, default_rank: int | None, chunk_bytes: int = CHUNK_BYTES
) -> RankFile:
    """Read one file completely, or up to where it is cut off.

    Args:
        file: A file that was recognised as Kineto JSON.
        default_rank: Rank of a file that does not say which one it is.
        chunk_bytes: Uncompressed text that is held at once; no result depends on it.

    Raises:
        TraceFormatError: It cannot be decoded, holds no profiler events, or holds several ranks.
    """
    stream = EventStream(file, chunk_bytes=chunk_bytes)
    collector = RoleCollector(file.label)
    for events in stream.batches():
        collector.add(events)
    header, notes = stream.header, list(stream.losses)
    roles = collector.finish(header.base_time_nanoseconds or 0)
    if not (len(roles.device) or len(roles.operator) or len(roles.host_note)):
        what = "; ".join(["holds no events of the PyTorch profiler", *notes])
        raise TraceFormatError(
            what, where=file.label, remedy="Record it again, and let the profiler finish writing"
        )
    _refuse_merged(roles, file.label)
    info = header.distributed_info or DistributedInfo()
    rank = _rank(info, file.name, default_rank, notes)
    if rank is None:
        raise TraceFormatError(
            "names no rank in its header or file name",
            where=file.label,
            remedy="Put rank<N> into the file name",
        )
    return _rank_file(file.label, rank, roles, header, notes)


def _rank_file(
    label: str, rank: int, roles: RoledEvents, header: KinetoHeader, notes: list[str]
) -> RankFile:
    info = header.distributed_info or DistributedInfo()
    links = device_links(roles)
    steps = step_windows(roles)
    issued = IssueContext.of(roles, links, steps)
    name_id, used = pd.factorize(np.concatenate([roles.device.name, roles.operator.name]))
    names = pa.array([roles.names[code] for code in used.tolist()], pa.string())
    count = len(roles.device)
    return RankFile(
        label=label,
        rank=rank,
        world_size=_world_size(info),
        device_name=_device_name(header, roles.device),
        has_base_time=bool(header.base_time_nanoseconds),
        device_events=count,
        tables={
            "name": _name_table(rank, names),
            "kernel": _kernel_table(rank, roles.device, links, issued.step, name_id[:count]),
            "op": _op_table(rank, roles.operator, steps, name_id[count:]),
            "step": _step_table(rank, steps),
            "span": _span_table(rank, roles, steps),
        },
        communication=rank_communication(rank, info, roles, issued),
        notes=[*notes, *_notes(roles, links, steps)],
    )


def _refuse_merged(roles: RoledEvents, where: str) -> None:
    """Refuse a file in which a tool has joined the events of several ranks.

    Raises:
        TraceFormatError: It is such a file.
    """
    if len(roles.merged_ranks) > 1:
        raise TraceFormatError(
            f"holds the events of {len(roles.merged_ranks)} ranks merged into one file",
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


def _device_name(header: KinetoHeader, device: Events) -> str | None:
    """Return the model of the device that the rank used most."""
    by_id = {
        to_int(p.id): str(p.name) for p in header.device_properties or () if p.name is not None
    }
    used, count = np.unique(device.device, return_counts=True)
    if len(used) and (most := int(used[count.argmax()])) in by_id:
        return by_id[most]
    return next(iter(by_id.values()), None)


def _notes(roles: RoledEvents, links: DeviceLinks, steps: StepWindows) -> list[str]:
    notes = []
    if steps.is_whole_file:
        notes.append("no ProfilerStep is marked, so the whole file is step 0")
    if not len(roles.device):
        notes.append("there are no device events")
    unlinked = int((~links.is_linked).sum())
    if unlinked:
        notes.append(
            f"{unlinked} of {len(roles.device)} device events have no launch; they are kept"
        )
    if roles.timeless:
        notes.append(f"{roles.timeless} events without a time stamp are left out")
    unseen = int((roles.device.category == CATEGORIES.index(KernelCategory.UNKNOWN)).sum())
    if unseen:
        notes.append(
            f"{unseen} kernels communicate without a collective library and count as computation"
        )
    on_host = len(roles.host_note.named(roles.names_like(_HOST_COLLECTIVE)))
    if on_host:
        notes.append(f"{on_host} collectives on the host have no device kernel and are left out")
    return notes


def _name_table(rank: int, names: pa.Array) -> pa.Table:
    columns = {"rank": np.full(len(names), rank), "name_id": np.arange(len(names)), "name": names}
    return NAME.conform(pa.table(columns))


def _kernel_table(
    rank: int, device: Events, links: DeviceLinks, step: IntArray, name_id: npt.NDArray[np.intp]
) -> pa.Table:
    words = pa.array([category.value for category in CATEGORIES], pa.string())
    columns = {
        "rank": np.full(len(device), rank),
        "step": step,
        "device": device.device,
        "stream": device.stream,
        "name_id": name_id,
        "category": words.take(pa.array(device.category, pa.int32())),
        "start_ns": device.start,
        "dur_ns": device.dur,
        "correlation": device.correlation,
        "op_id": links.operator,
        "launch_ns": pa.array(links.launch, mask=~links.is_linked),
    }
    return KERNEL.conform(pa.table(columns))


def _op_table(
    rank: int, operator: Events, steps: StepWindows, name_id: npt.NDArray[np.intp]
) -> pa.Table:
    columns = {
        "rank": np.full(len(operator), rank),
        "step": steps.step_of(operator.start),
        "op_id": np.arange(len(operator)),
        "name_id": name_id,
        "thread": operator.thread,
        "start_ns": operator.start,
        "dur_ns": operator.dur,
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


def _span_table(rank: int, roles: RoledEvents, steps: StepWindows) -> pa.Table:
    """Return the recognised annotations; one on the device has the step of its host twin."""
    parts = []
    notes = roles.host_note
    for kind, events in recognised_spans(roles):
        host = first_match(events.external_id, notes.external_id, notes.start)
        issued = take_or(notes.start, host, events.start)
        columns = {
            "rank": np.full(len(events), rank),
            "step": steps.step_of(issued),
            "kind": pa.array([kind.value] * len(events), pa.string()),
            **{name: np.full(len(events), -1) for name in ("stage", "chunk", "microbatch")},
            "start_ns": events.start,
            "dur_ns": events.dur,
        }
        parts.append(SPAN.conform(pa.table(columns)))
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()
