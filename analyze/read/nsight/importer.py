"""SQLite exports of Nsight Systems, one file for one or several ranks, as one Trace.

``nsys export --type sqlite`` writes what the device did (CUPTI tables), what the host
called, and the NVTX ranges of the program. Which process is which rank, where a step
begins and what a collective is called comes from names, as far as there are any. What
Nsight Systems itself said went wrong while it recorded is a limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import RUN, TABLES
from meshscope.probe.schema.terms import CaptureLevel

from ...wording.limits import Limit
from ...wording.message import message
from ..file_limits import left_out_files, missing_ranks, shared_notes
from ..files import InputFile
from ..kineto.communication import CommunicationTables, assemble
from ..kineto.counted import counted_limits
from ..kineto.groups import NamedGroup
from ..kineto.lone_files import UNKNOWN_RANKS, lacks_peers
from .activities import Activities, Names, read_calls, read_device
from .database import MISSING, Database, IntArray
from .far_events import without_far_events
from .nccl import Membership, communicator_name, memberships
from .process import ProcessEvents, ProcessTables, process_tables
from .ranges import NvtxEvents, Ranges, process_of, read_nvtx
from .ranks import NumberedProcess, number_by_device, number_processes

_TABLE = "DIAGNOSTIC_EVENT"
_WARNING = 2
"""Lowest severity that is reported: 1 is information, 2 a warning, 3 an error."""
_MOST = 6
"""The worst come first; a report of more is not read."""
_MOST_TEXT = 300
"""A sentence or two: a diagnostic may hold a whole log."""


def diagnostics(database: Database) -> tuple[str, ...]:
    """Return its warnings and errors, each once, errors first.

    Raises:
        TraceFormatError: The file is damaged.
    """
    rows = database.pairs(_TABLE, "severity", "text")
    messages = [
        (severity, " ".join(str(text).split())[:_MOST_TEXT])
        for severity, text in rows
        if isinstance(severity, int) and severity >= _WARNING and text
    ]
    ordered = dict.fromkeys(text for _, text in sorted(messages, key=lambda one: -one[0]))
    return tuple(ordered)[:_MOST]


_KNOWN_VERSIONS = ("2", "3")
"""Major versions of the schema that this reader knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """One rank and where it comes from."""

    label: str
    rank: int
    host: str
    has_base_time: bool
    device_name: str | None
    joined: list[Membership]
    found: ProcessTables


def import_nsight(path: Path, files: Sequence[InputFile], *, limits: Sequence[Limit] = ()) -> Trace:
    """Read SQLite exports of Nsight Systems into the tables.

    Args:
        path: What the user named; it becomes the name of the run.
        files: Files recognised as such exports.
        limits: What is already known to be missing.

    Raises:
        TraceFormatError: Two processes claim one rank, or no file can be read.
    """
    ranks, notes = _read_all(files)
    members = _members(ranks)
    _name_peers(ranks, members)
    world_size = max((one.ranks for r in ranks for one in r.joined), default=0)
    world_size = max(world_size, ranks[-1].rank + 1)
    is_alone = _lacks_peers(ranks)
    communication = assemble([r.found.communication for r in ranks], range(world_size + is_alone))
    return Trace(
        path=path,
        run=_run(path, ranks, UNKNOWN_RANKS if is_alone else world_size),
        layout=None,
        ranks=tuple(r.rank for r in ranks),
        tables=_tables(ranks, communication),
        limits=(*limits, *notes, *_limits(ranks, world_size, is_alone=is_alone)),
        origin="nsight",
        clocks={r.rank: r.host if r.host == r.label else f"{r.host} ({r.label})" for r in ranks},
    )


def _read_all(files: Sequence[InputFile]) -> tuple[list[_Rank], list[Limit]]:
    """Return the readable ranks in rank order, and sentences about what could not be read."""
    by_rank: dict[int, _Rank] = {}
    notes: list[Limit] = []
    errors: list[TraceFormatError] = []
    for file in files:
        try:
            ranks = list(_read_file(file, notes, is_only=len(files) == 1))
        except TraceFormatError as error:
            errors.append(error)
            continue
        for one in ranks:
            if one.rank in by_rank:
                raise TraceFormatError(
                    message("refused.has_rank_twice", rank=one.rank, other=by_rank[one.rank].label),
                    where=one.label,
                    remedy=message("advice.exports_of_one_run"),
                )
            by_rank[one.rank] = one
    if not by_rank:
        raise errors[0]
    return [by_rank[rank] for rank in sorted(by_rank)], [
        *notes,
        *left_out_files(errors),
    ]


def _read_file(file: InputFile, notes: list[Limit], *, is_only: bool) -> Iterator[_Rank]:
    """Yield the ranks of one file.

    Raises:
        TraceFormatError: It is damaged, or nothing says which rank a process is.
    """
    with Database(file) as database:
        nvtx = read_nvtx(database)
        names = Names(nvtx.names)
        device, calls = read_device(database, names), read_calls(database, names)
        device, calls, nvtx, far = without_far_events(device, calls, nvtx, names.texts)
        processes = _processes(device, calls, nvtx, file.label, diagnostics(database))
        if len(processes) == 1:
            device = device.with_process(processes[0])
        own = {process: _ranges_of(nvtx, process) for process in processes}
        joined = {process: memberships(nvtx, own[process]) for process in processes}
        numbered = number_processes(database, nvtx, file.label, joined)
        if is_only:
            numbered = number_by_device(numbered, database, device)
        _refuse_unnumbered(numbered, file.label)
        notes += _file_notes(database, file.name, nvtx, device.lost + calls.lost)
        notes += far
        stray = int((~np.isin(device.columns["process"], processes)).sum())
        if stray:
            notes.append(message("missing.events_without_process", count=stray, file=file.name))
        base_ns = _base_ns(database)
        for one in numbered:
            if one.rank is None:
                notes.append(message("missing.process_without_rank", file=file.name))
                continue
            events = ProcessEvents(
                device=device.of_process(one.process),
                calls=calls.of_process(one.process),
                ranges=own[one.process],
                nvtx=nvtx,
                names=names.texts,
                joined=joined[one.process],
            )
            found = process_tables(events, one.rank, base_ns)
            if one.evidence is not None:
                found.notes.append(one.evidence)
            yield _Rank(
                label=file.label,
                rank=one.rank,
                host=_host(database) or file.label,
                has_base_time=base_ns > 0,
                device_name=_device_name(database),
                joined=joined[one.process],
                found=found,
            )


def _base_ns(database: Database) -> int:
    """Return the time of day that times of the export count from, ns since 1970; 0 if unknown."""
    utc = database.integers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
    return int(utc[0]) if len(utc) and 0 < utc[0] < 1 << 61 else 0


def _processes(
    device: Activities, calls: Activities, nvtx: NvtxEvents, where: str, said: Sequence[str]
) -> list[int]:
    """Return the processes with device activities, else those of the host's events.

    Old exports name no process; what they hold is taken to be of one.

    Raises:
        TraceFormatError: There is none.
    """
    found = _distinct(device.columns["process"])
    if found:
        return found
    on_host = _distinct(calls.columns["process"], process_of(nvtx.ranges.thread))
    if len(device.columns["process"]):
        return on_host if len(on_host) == 1 else [MISSING]
    if not on_host:
        what, remedy = message("refused.no_activity"), message("advice.trace_cuda")
        if said:
            what = message("refused.no_activity_because", said=" | ".join(said))
            remedy = message("advice.mend_nsight")
        raise TraceFormatError(what, where=where, remedy=remedy)
    return on_host


def _distinct(*columns: IntArray) -> list[int]:
    return [one for one in np.unique(np.concatenate(columns)).tolist() if one != MISSING]


def _ranges_of(nvtx: NvtxEvents, process: int) -> Ranges:
    return nvtx.ranges.take(process_of(nvtx.ranges.thread) == process)


def _refuse_unnumbered(numbered: Sequence[NumberedProcess], where: str) -> None:
    if all(one.rank is None for one in numbered):
        raise TraceFormatError(
            message("refused.unnumbered_processes", count=len(numbered))
            if len(numbered) > 1
            else message("refused.names_no_rank"),
            where=where,
            remedy=message("advice.export_of_each_rank"),
        )


def _file_notes(database: Database, name: str, nvtx: NvtxEvents, lost: int) -> Iterator[Limit]:
    """Yield what a file does not tell, one sentence each."""
    version = dict(database.pairs("META_DATA_EXPORT", "name", "value")).get("EXPORT_SCHEMA_VERSION")
    if version is not None and str(version).partition(".")[0] not in _KNOWN_VERSIONS:
        yield message("assumed.schema_version", file=name, version=str(version))
    for text in diagnostics(database):
        yield message("missing.as_nsight_said", file=name, text=text.rstrip("."))
    if lost:
        yield message("missing.events_without_times", count=lost, file=name)
    if nvtx.lost:
        yield message("missing.ranges_without_end", count=nvtx.lost, file=name)
    if nvtx.payloads.unread:
        yield message("missing.payloads", count=nvtx.payloads.unread, file=name)
    if not database.has("StringIds"):
        yield message("unknown.names_of_file", file=name)


def _host(database: Database) -> str:
    pairs = database.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")
    return next((str(value) for name, value in pairs if name == "Hostname"), "")


def _device_name(database: Database) -> str | None:
    """Return the models of the devices of a file."""
    found = {str(name) for _, name in database.pairs("TARGET_INFO_GPU", "id", "name") if name}
    return ", ".join(sorted(found)) or None


def _members(ranks: Sequence[_Rank]) -> dict[str, dict[int, int]]:
    """Return the global rank of each member of a communicator, by its number in it."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for one in ranks:
        for membership in one.joined:
            found[communicator_name(membership.communicator)][membership.rank] = one.rank
    for one in ranks:
        for membership in one.joined:
            name = communicator_name(membership.communicator)
            if len(found[name]) == membership.ranks:
                ordered = tuple(found[name][number] for number in range(membership.ranks))
                one.found.communication.groups[name] = NamedGroup(ordered, "")
    return found


def _name_peers(ranks: Sequence[_Rank], members: dict[str, dict[int, int]]) -> None:
    """Turn the peers of sends and receives, numbers in a communicator, into global ranks."""
    for one in ranks:
        for row in one.found.communication.rows:
            if row["direction"]:
                known = members.get(str(row["group_name"]), {})
                row["peer"] = known.get(int(str(row["peer"])), -1)


def _lacks_peers(ranks: Sequence[_Rank]) -> bool:
    is_named = any(one.joined for one in ranks)
    return len(ranks) == 1 and not is_named and lacks_peers(ranks[0].found.tables["kernel"])


def _run(path: Path, ranks: Sequence[_Rank], world_size: int) -> dict[str, object]:
    names = {r.device_name for r in ranks if r.device_name}
    known = {
        "run_id": path.name,
        "world_size": world_size,
        "device_name": ", ".join(sorted(names)) or None,
        "capture_level": CaptureLevel.KERNELS.value,
    }
    return dict.fromkeys(RUN.column_names()) | known


def _tables(ranks: Sequence[_Rank], communication: CommunicationTables) -> dict[str, pa.Table]:
    tables = {name: spec.empty() for name, spec in TABLES.items()}
    for name in ranks[0].found.tables:
        parts = pa.concat_tables([r.found.tables[name] for r in ranks])
        tables[name] = parts.unify_dictionaries().combine_chunks()
    return tables | communication.tables()


def _limits(ranks: Sequence[_Rank], world_size: int, *, is_alone: bool) -> Iterator[Limit]:
    """Yield what the files do not hold, one sentence for all ranks that share it."""
    is_named = any(r.joined for r in ranks)
    if is_alone:
        yield message("missing.peers_of_lone_file")
    else:
        yield from missing_ranks([r.rank for r in ranks], world_size, is_named=is_named)
    if len({r.has_base_time for r in ranks}) > 1:
        yield message("doubt.start_times")
    yield from shared_notes((r.rank, r.found.notes) for r in ranks)
    yield from counted_limits(one.found.communication.counts for one in ranks)
