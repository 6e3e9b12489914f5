"""One process of an Nsight Systems export as the tables of its rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.tables import SPAN
from meshscope.probe.schema.terms import KernelCategory

from ...wording.limits import Limit
from ...wording.message import message
from ..kineto.columns import DeviceLinks, StepWindows, launching_call, take_or, windows_found
from ..kineto.communication import IssueContext, RankCommunication, rank_communication
from ..kineto.device_windows import first_step_work, until_device_is_done
from ..kineto.event_columns import CATEGORIES, Events, IntArray, RoledEvents, SpilledEvents
from ..kineto.events import DistributedInfo, EventArgs
from ..kineto.overhead import several_devices
from ..kineto.rows import (
    annotation_table,
    kernel_table,
    name_table,
    op_table,
    runtime_call_table,
    step_table,
)
from ..kineto.side_streams import separated, unknown_notes
from ..kineto.step_gaps import until_the_next
from .activities import GRAPH_NAME
from .nccl import Membership, kernel_arguments
from .ranges import NamedSpans, NvtxEvents, Ranges, innermost, nvtx_spans, nvtx_steps, operators

_COMMUNICATION = CATEGORIES.index(KernelCategory.COMMUNICATION)
_LAUNCH = "Launch"
"""In the names of calls that launch kernels."""
_NO_THREAD = -1
_WHOLE_CAPTURE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvents:
    """What a file holds of one process; times are those of the file."""

    device: dict[str, IntArray]
    calls: dict[str, IntArray]
    ranges: Ranges
    nvtx: NvtxEvents
    names: list[str]
    joined: list[Membership]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTables:
    """What one process gave."""

    tables: dict[str, pa.Table]
    communication: RankCommunication
    notes: list[Limit]
    """What is missing, one clause each."""


def process_tables(events: ProcessEvents, rank: int, base_ns: int) -> ProcessTables:
    """Return the tables of a process.

    Args:
        events: What the file holds of it.
        rank: The rank that it is.
        base_ns: Time of the start of the capture, added to all times.
    """
    host = _host_events(events, base_ns)
    roles, links, thread = _roles(events, host, base_ns)
    roles = separated(roles, links)
    launched = links.launch - base_ns
    steps, unused, notes = _steps(events, roles, links, host, base_ns)
    windows, links = first_step_work(steps, roles.device, links)
    roles.communication.update(_communication(events, roles, launched, thread))
    issued = IssueContext.of(roles, links, steps)
    communication = rank_communication(rank, DistributedInfo(), roles, issued)
    spans = nvtx_spans(events.nvtx, events.ranges, *_in_order(launched, roles.device, base_ns))
    parts = (roles.device, host.operators, host.calls, roles.host_note)
    name_id, used = pd.factorize(np.concatenate([part.name for part in parts]))
    of_kernel, of_op, of_call, of_note = np.split(name_id, np.cumsum([*map(len, parts[:3])]))
    names = pa.array([roles.names[code] for code in used.tolist()], pa.string())
    reversed_times = sum(
        int((one["end"] < one["start"]).sum()) for one in (events.device, events.calls)
    )
    if reversed_times:
        notes.append(message("assumed.reversed_events", count=reversed_times))
    return ProcessTables(
        tables={
            "name": name_table(rank, names),
            "kernel": kernel_table(rank, roles.device, links, issued.step, of_kernel),
            "runtime_call": runtime_call_table(rank, host.calls, steps, of_call),
            "op": op_table(rank, host.operators, steps, of_op),
            "annotation": annotation_table(rank, roles, steps, of_note),
            "step": step_table(
                rank, until_device_is_done(windows, roles.device, links, issued.step)
            ),
            "span": _span_table(rank, spans, steps, base_ns),
        },
        communication=_untyped(communication),
        notes=[*notes, *_notes(roles, links, unused, host.calls)],
    )


@dataclass(frozen=True, slots=True)
class _HostEvents:
    """What the host did; times have the base added."""

    calls: Events
    operators: Events
    notes: Events
    nested: Ranges
    """The ranges of the operators, on the clock of the file."""


def _host_events(events: ProcessEvents, base_ns: int) -> _HostEvents:
    is_operator = operators(events.nvtx, events.ranges)
    nested = events.ranges.take(is_operator)
    return _HostEvents(
        _calls(events.calls, base_ns),
        _range_events(nested, base_ns),
        _range_events(events.ranges.take(~is_operator), base_ns),
        nested,
    )


def _roles(
    events: ProcessEvents, host: _HostEvents, base_ns: int
) -> tuple[RoledEvents, DeviceLinks, IntArray]:
    """Return the events by their roles, the links of device activities, and launching threads.

    Calls and operators are not among the roles: all that is needed of them is in the links.
    """
    device, calls = _device_events(events.device, base_ns), host.calls
    none = SpilledEvents((), base_ns)
    roles = RoledEvents(
        names=events.names,
        device=device,
        launch=none,
        operator=none,
        host_note=host.notes,
        device_note=Events(start=np.empty(0, dtype=np.int64)),
        python=Events(start=np.empty(0, dtype=np.int64)),
        communication={},
        merged_ranks=frozenset(),
        timeless=0,
    )
    call = launching_call(device, calls)
    launch = take_or(calls.start, call, device.start)
    thread = take_or(calls.thread, call, np.full(len(device), _NO_THREAD, dtype=np.int64))
    around = innermost(host.nested, launch - base_ns, thread)
    return roles, DeviceLinks(launch, call >= 0, around), thread


def _device_events(columns: dict[str, IntArray], base_ns: int) -> Events:
    count = len(columns["start"])
    return Events(
        start=columns["start"] + base_ns,
        dur=_dur(columns["start"], columns["end"]),
        name=columns["name"],
        correlation=columns["correlation"],
        device=columns["device"],
        stream=columns["stream"],
        category=columns["category"],
        external_id=np.full(count, -1, dtype=np.int64),
        blocks=columns["blocks"],
        position=np.arange(count, dtype=np.int32),
        size_bytes=columns["size_bytes"],
        rate_bytes_per_s=np.full(count, np.nan),
        wait_stream=np.full(count, -1, dtype=np.int64),
        wait_correlation=np.full(count, -1, dtype=np.int64),
    )


def _calls(columns: dict[str, IntArray], base_ns: int) -> Events:
    return Events(
        start=columns["start"] + base_ns,
        dur=_dur(columns["start"], columns["end"]),
        name=columns["name"],
        correlation=columns["correlation"],
        thread=columns["thread"],
        category=columns["category"],
        position=np.arange(len(columns["start"]), dtype=np.int32),
    )


def _range_events(ranges: Ranges, base_ns: int) -> Events:
    return Events(
        start=ranges.start + base_ns,
        dur=_dur(ranges.start, ranges.end),
        name=ranges.name,
        thread=ranges.thread,
        external_id=np.full(len(ranges), -1, dtype=np.int64),
        position=ranges.row.astype(np.int32),
    )


def _dur(start: IntArray, end: IntArray) -> IntArray:
    dur: IntArray = np.maximum(end - start, 0)
    return dur


def _communication(
    events: ProcessEvents, roles: RoledEvents, launched: IntArray, thread: IntArray
) -> dict[int, EventArgs]:
    places = np.flatnonzero(roles.device.category == _COMMUNICATION)
    sizes = {one.communicator: one.ranks for one in events.joined}
    known = kernel_arguments(events.nvtx, events.ranges, launched[places], thread[places], sizes)
    return dict(zip(places.tolist(), known, strict=True))


def _untyped(communication: RankCommunication) -> RankCommunication:
    """Return the communication without element types, which Nsight does not record."""
    for row in communication.rows:
        row["dtype"] = None
    return communication


def _in_order(
    launched: IntArray, device: Events, base_ns: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return launch, start and end of the work of the device, by launch, on the file's clock."""
    works = np.flatnonzero(device.category != CATEGORIES.index(KernelCategory.SYNC))
    order = works[np.argsort(launched[works], kind="stable")]
    return launched[order], device.start[order] - base_ns, device.time.end[order] - base_ns


def _steps(
    events: ProcessEvents,
    roles: RoledEvents,
    links: DeviceLinks,
    host: _HostEvents,
    base_ns: int,
) -> tuple[StepWindows, int, list[Limit]]:
    """Return the steps, how many ranges were not used, and what is said of them."""
    named, unused = nvtx_steps(events.nvtx, events.ranges)
    steps = windows_found(roles) if named is None else _moved(named, base_ns)
    if steps is None:
        return _whole_capture(roles, links, host), unused, [message("scope.no_step_range")]
    steps, notes = until_the_next(steps)
    return steps, unused, notes if steps.found_by is None else [steps.found_by, *notes]


def _moved(steps: StepWindows, base_ns: int) -> StepWindows:
    return StepWindows(
        steps.number, steps.start + base_ns, steps.end + base_ns, is_whole_file=False
    )


def _whole_capture(roles: RoledEvents, links: DeviceLinks, host: _HostEvents) -> StepWindows:
    """Return one window over the work of the device and its launches, else over all that the host did."""
    if len(roles.device):
        start, end = links.launch, roles.device.time.end
    else:
        parts = (roles.host_note, host.operators, host.calls)
        start = np.concatenate([part.start for part in parts])
        end = np.concatenate([part.time.end for part in parts])
    first, last = (np.array([bound], dtype=np.int64) for bound in (start.min(), end.max()))
    return StepWindows(np.array([_WHOLE_CAPTURE]), first, last, is_whole_file=True)


def _span_table(rank: int, spans: list[NamedSpans], steps: StepWindows, base_ns: int) -> pa.Table:
    parts = [SPAN.empty()]
    for one in spans:
        count = len(one.start)
        columns = {
            "rank": np.full(count, rank),
            "step": steps.step_of(one.issued + base_ns),
            "kind": pa.array([one.kind.value] * count, pa.string()),
            **{name: np.full(count, -1) for name in ("stage", "chunk")},
            "microbatch": one.microbatch,
            "start_ns": one.start + base_ns,
            "dur_ns": one.end - one.start,
        }
        parts.append(SPAN.conform(pa.table(columns)))
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def _notes(roles: RoledEvents, links: DeviceLinks, unused: int, calls: Events) -> list[Limit]:
    device = roles.device
    notes: list[Limit] = []
    if unused:
        notes.append(message("missing.ranges_as_steps", count=unused))
    launches = 0 if len(device) else sum(_LAUNCH in roles.names[c] for c in calls.name.tolist())
    if launches:
        notes.append(message("missing.device_activity", launches=launches))
    elif not len(device):
        notes.append(message("missing.device_events"))
    notes += several_devices(roles)
    unlinked = int((~links.is_linked).sum())
    if unlinked:
        notes.append(message("missing.launches", unlinked=unlinked, events=len(device)))
    graphs = int(
        np.isin(device.name, [c for c, n in enumerate(roles.names) if n == GRAPH_NAME]).sum()
    )
    if graphs:
        notes.append(message("unknown.graphs", count=graphs))
    return [*notes, *unknown_notes(roles, links)]
