"""One Kineto file as the tables of one rank."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from meshscope.probe.schema.errors import TraceFormatError

from ...tables.stored_tables import STORED
from ...wording.limits import Limit
from ...wording.message import message
from ..files import MAX_RANKS, InputFile, rank_in_name
from ..reading import OnBytes, ignore_bytes
from .chrome_pairs import join_pairs
from .columns import (
    DeviceLinks,
    StepWindows,
    device_links,
    repeated_marks,
    step_windows,
    threads_of_a_step,
)
from .communication import IssueContext, RankCommunication, rank_communication
from .cut_files import whole_steps
from .device_clock import with_clock_of_host
from .device_tail import lost_tail, without_lost_tail
from .device_windows import first_step_work, until_device_is_done
from .event_columns import Events, RoledEvents
from .events import DistributedInfo, KinetoHeader, to_int
from .far_events import without_far_events
from .host_communication import HOST_COLLECTIVE, add_host_communication
from .jobs import JobMark
from .launch_delays import clock_notes
from .lengthless import without_lengthless_work
from .noted_collectives import with_noted_collectives
from .overhead import overhead_notes, several_devices, with_overhead_notes
from .repeated_events import without_repeated_events
from .roles import RoleCollector
from .rows import name_table, span_table, step_table, write_rank_tables
from .side_streams import separated, unknown_notes
from .step_gaps import until_the_next
from .stream import CHUNK_BYTES, EventStream
from .units import refuse_other_unit


class RankFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one file gave."""

    label: str
    rank: int
    job: JobMark
    """What the header says about the job."""
    world_size: int | None
    device_name: str | None
    has_base_time: bool
    device_events: int
    tables: dict[str, pa.Table]
    """Tables that are small."""
    stored: dict[str, Path]
    """Files of the tables that have a row for every event."""
    communication: RankCommunication
    notes: list[Limit]
    """What is missing on this rank, one clause each."""
    losses: tuple[Limit, ...] = ()
    """Those of the notes that say that the file is damaged."""
    marks_steps: bool = True
    """False where the whole file is one step."""
    numbers_steps: bool = True
    """False where the numbers of steps are none of the file."""
    whole_steps: frozenset[int] | None = None
    """Of a file that is cut off, the steps that it surely holds; None for any other."""

    @property
    def has_device(self) -> bool:
        """Return whether it holds work of a device."""
        return self.device_events > 0


def read_rank_file(
    file: InputFile,
    place: Place,
    *,
    default_rank: int | None,
    chunk_bytes: int = CHUNK_BYTES,
    on_bytes: OnBytes = ignore_bytes,
) -> RankFile:
    """Read one file completely, or up to where it is cut off.

    Memory holds the device activities, which are few, and a part of everything else.

    Args:
        file: A file that was recognised as Kineto JSON.
        place: Where its large tables go.
        default_rank: Rank of a file that does not say which one it is.
        chunk_bytes: Uncompressed text that is held at once; no result depends on it.
        on_bytes: Told how many more bytes of the file were read.

    Raises:
        TraceFormatError: It cannot be decoded, holds no profiler events, or holds several ranks.
        OSError: It cannot be read, or a table cannot be written.
    """
    stream = EventStream(file, chunk_bytes=chunk_bytes, on_bytes=on_bytes)
    with closing(RoleCollector(file.label, folder=place.folder)) as collector:
        for events in stream.batches():
            collector.add(events)
            del events
        if not collector.has_halves:
            return _of_events(file.label, stream, collector, place, default_rank)
    joined, lost = place.folder / f"{place.stem}.pairs.json", list[Limit]()
    try:
        again = EventStream(join_pairs(file, joined, lost), chunk_bytes=chunk_bytes)
        with closing(RoleCollector(file.label, folder=place.folder)) as collector:
            for events in again.batches():
                collector.add(events)
                del events
            again.losses += lost
            return _of_events(file.label, again, collector, place, default_rank)
    finally:
        joined.unlink(missing_ok=True)


def _of_events(
    label: str,
    stream: EventStream,
    collector: RoleCollector,
    place: Place,
    default_rank: int | None,
) -> RankFile:
    """Return what the events of a file gave, all of which were taken."""
    header = stream.header
    notes: list[Limit] = list(stream.losses)
    roles = collector.finish(header.base_time_nanoseconds or 0)
    parts = (len(roles.device), len(roles.operator), len(roles.host_note), len(roles.python))
    if not any(parts):
        raise _without_events(roles, notes, label)
    roles, lengthless = without_lengthless_work(roles, label)
    roles, far = without_far_events(roles, label)
    roles, repeated = without_repeated_events(roles)
    notes += [*lengthless, *far, *repeated]
    refuse_other_unit(roles, label)
    _refuse_merged(roles, label)
    info = header.distributed_info or DistributedInfo()
    rank = _rank(info, label, default_rank, notes)
    if rank is None:
        raise TraceFormatError(
            message("refused.no_rank_in_header"),
            where=label,
            remedy=message("advice.name_rank"),
        )
    source = _Source(label, rank, header, notes, tuple(stream.losses), is_cut=stream.is_cut)
    return _rank_file(source, roles, place)


class Place(msgspec.Struct, frozen=True):
    """Where the events of one rank go; files are named before its rank is known."""

    folder: Path
    stem: str
    steps: StepWindows | None = None
    """The steps that they go to; by default those that the file marks."""

    def files(self) -> dict[str, Path]:
        """Return the file of each large table, in folders that are made."""
        found = {name: self.folder / name / f"{self.stem}.parquet" for name in STORED}
        for file in found.values():
            file.parent.mkdir(exist_ok=True)
        return found


class _Source(msgspec.Struct, frozen=True):
    """Whose events they are."""

    label: str
    rank: int
    header: KinetoHeader
    notes: list[Limit]
    losses: tuple[Limit, ...]
    is_cut: bool


def _rank_file(source: _Source, roles: RoledEvents, place: Place) -> RankFile:
    rank, header = source.rank, source.header
    info = header.distributed_info or DistributedInfo()
    links = device_links(roles)
    roles, moved = with_clock_of_host(roles, links)
    links = device_links(roles) if moved else links
    roles = separated(with_noted_collectives(roles, links), links)
    steps = step_windows(roles) if place.steps is None else place.steps
    steps, of_gaps = until_the_next(steps)
    windows, links = first_step_work(steps, roles.device, links)
    issued = IssueContext.of(roles, links, steps)
    files = place.files()
    job = JobMark.of(info)
    world_size = _world_size(info, source.notes)
    if job.world_size is not None and rank >= job.world_size:
        source.notes.append(message("doubt.rank_beyond_header", ranks=job.world_size))
    names = write_rank_tables(rank, with_overhead_notes(roles), links, steps, files)
    communication = rank_communication(rank, info, roles, issued)
    on_host = len(roles.host_note.named(roles.names_like(HOST_COLLECTIVE)))
    if not len(roles.device):
        on_host = add_host_communication(communication, roles, steps)
    windows = until_device_is_done(windows, roles.device, links, issued.step)
    tail = None if source.is_cut else lost_tail(roles, steps)
    windows, lost = without_lost_tail(windows, tail)
    return RankFile(
        label=source.label,
        rank=rank,
        job=job,
        world_size=world_size,
        device_name=_device_name(header, roles.device),
        has_base_time=bool(header.base_time_nanoseconds),
        device_events=len(roles.device),
        tables={
            "name": name_table(rank, names),
            "step": step_table(rank, windows),
            "span": span_table(rank, roles, steps),
        },
        stored=files,
        communication=communication,
        notes=[*source.notes, *moved, *_notes(roles, links, steps, on_host), *of_gaps, *lost],
        losses=source.losses,
        marks_steps=not steps.is_whole_file,
        numbers_steps=not steps.is_whole_file and steps.found_by is None,
        whole_steps=whole_steps(roles, steps) if source.is_cut else None,
    )


def _without_events(roles: RoledEvents, notes: list[Limit], where: str) -> TraceFormatError:
    """Return why a file is refused of which nothing is used; that of another tool has events, but no categories."""
    remedy = message("advice.let_profiler_finish")
    if roles.unplaced or roles.unknown:
        remedy = message("convert.xplane")
    return TraceFormatError(
        message("refused.several", items=[message("refused.no_profiler_events"), *notes]),
        where=where,
        remedy=remedy,
    )


def _refuse_merged(roles: RoledEvents, where: str) -> None:
    """Refuse a file that holds the events of several ranks: joined by a tool, or written by several.

    Raises:
        TraceFormatError: It is such a file.
    """
    if len(roles.merged_ranks) > 1:
        raise TraceFormatError(
            message("refused.merged_ranks", ranks=len(roles.merged_ranks)),
            where=where,
            remedy=message("advice.file_that_rank_wrote"),
        )
    if len(roles.processes) > 1:
        raise TraceFormatError(
            message("refused.several_processes", processes=list(roles.processes)),
            where=where,
            remedy=message("advice.file_that_rank_wrote"),
        )
    threads = threads_of_a_step(roles)
    if threads:
        said = message("refused.marks_of_several", threads=threads)
        raise TraceFormatError(
            said if len(threads) > 1 else message("refused.marks_at_once"),
            where=where,
            remedy=message("advice.file_that_rank_wrote"),
        )


def _rank(info: DistributedInfo, label: str, default: int | None, notes: list[Limit]) -> int | None:
    """Return the rank by the header, else by the name of the file or its folder."""
    by_name = rank_in_name(label)
    by_header = None if info.rank is None else to_int(info.rank)
    if by_header is not None and by_header >= MAX_RANKS:
        notes.append(message("assumed.absurd_rank", rank=by_header))
        by_header = None
    if by_header is not None and by_header >= 0:
        if by_name is not None and by_name != by_header:
            notes.append(message("assumed.header_over_name", rank=by_name))
        return by_header
    if by_name is not None:
        notes.append(message("assumed.rank_by_name"))
        return by_name
    notes.append(message("assumed.rank_by_none"))
    return default


def _world_size(info: DistributedInfo, notes: list[Limit]) -> int | None:
    size = to_int(info.world_size, 0)
    if size > MAX_RANKS:
        notes.append(message("assumed.absurd_world", ranks=size))
    elif size > 0:
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


def _category_notes(roles: RoledEvents) -> list[Limit]:
    """Return what is said of device work that is missing, and of categories that are not known."""
    notes: list[Limit] = []
    launches = sum(int((part.correlation > 0).sum()) for part in roles.launch.parts())
    if roles.is_ascend:
        notes.append(message("scope.ascend"))
    if not len(roles.device) and launches:
        notes.append(message("missing.device_activity", launches=launches))
    elif not len(roles.device):
        notes.append(message("missing.device_events"))
    for name, (count, on_device) in sorted(roles.unknown.items()):
        if on_device:
            notes.append(
                message("doubt.unknown_category", count=count, category=name, on_device=on_device)
            )
        else:
            notes.append(message("missing.unknown_category", count=count, category=name))
    if roles.unplaced:
        notes.append(message("missing.events_without_category", count=roles.unplaced))
    return notes


def _notes(roles: RoledEvents, links: DeviceLinks, steps: StepWindows, on_host: int) -> list[Limit]:
    notes: list[Limit] = []
    if steps.is_whole_file:
        notes.append(message("scope.whole_file"))
    elif steps.found_by is not None:
        notes.append(steps.found_by)
    notes += clock_notes(roles, links)
    repeated = repeated_marks(roles, steps)
    if repeated:
        notes.append(message("missing.repeated_steps", count=repeated))
    notes += [*overhead_notes(roles, steps), *several_devices(roles)]
    notes += _category_notes(roles)
    unlinked = int((~links.is_linked).sum())
    if unlinked:
        notes.append(message("missing.launches", unlinked=unlinked, events=len(roles.device)))
    if roles.lengthless:
        notes.append(message("assumed.lengthless_events", count=roles.lengthless))
    if roles.timeless:
        notes.append(message("missing.timeless_events", count=roles.timeless))
    notes += unknown_notes(roles, links)
    if on_host and len(roles.device):
        notes.append(message("missing.collectives_on_host", count=on_host))
    elif on_host:
        kinds = sorted(match[0] for match in roles.names_like(HOST_COLLECTIVE).values())
        notes.append(message("missing.operations_without_group", count=on_host, kinds=kinds))
    return notes
