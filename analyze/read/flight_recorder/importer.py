"""Dumps of PyTorch's flight recorder, one file per rank, as one Trace.

A dump is made when a collective times out, or on request. It shows what each
rank had asked for and what had not come back; it has no steps and no compute.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshscope.analyze.tables.capabilities import FLIGHT_RECORDER
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import RUN
from meshscope.probe.schema.terms import CaptureLevel

from ...wording.limits import Limit
from ...wording.message import Message, message
from ..file_limits import left_out_files, missing_ranks, shared_notes
from ..files import InputFile
from .dump import Dump, Oddity, read_dump
from .moments import Outdated, outdated
from .tables import dump_tables


def import_flight_recorder(
    path: Path, files: Sequence[InputFile], *, limits: Sequence[Limit] = ()
) -> Trace:
    """Read the dumps of one job.

    Args:
        path: What the user named; it becomes the name of the run.
        files: Files recognised as dumps.
        limits: What is already known to be missing.

    Raises:
        TraceFormatError: Two files claim one rank, or no file can be read.
    """
    dumps, damaged = _read_all(files)
    older = outdated(dumps)
    left_out = {one.dump.rank for one in older}
    dumps = [dump for dump in dumps if dump.rank not in left_out]
    found = dump_tables(dumps)
    members = {rank for ranks in found.members.values() for rank in ranks}
    world_size = max(members | left_out | {dump.rank for dump in dumps}) + 1
    known = {
        "run_id": path.name,
        "world_size": world_size,
        "capture_level": CaptureLevel.COLLECTIVES.value,
    }
    return Trace(
        path=path,
        run=dict.fromkeys(RUN.column_names()) | known,
        layout=None,
        ranks=tuple(dump.rank for dump in dumps),
        tables=found.tables,
        limits=(*limits, *damaged, *_limits(dumps, world_size), *_of(older), *found.limits),
        origin=FLIGHT_RECORDER,
    )


def _read_all(files: Sequence[InputFile]) -> tuple[list[Dump], list[Limit]]:
    """Return the readable dumps in rank order, and a limit for each unreadable file."""
    by_rank: dict[int, Dump] = {}
    errors: list[TraceFormatError] = []
    for file in files:
        try:
            dump = read_dump(file)
        except TraceFormatError as error:
            errors.append(error)
            continue
        if dump.rank in by_rank:
            raise TraceFormatError(
                message("refused.rank_twice", rank=dump.rank, other=by_rank[dump.rank].label),
                where=dump.label,
                remedy=message("advice.dumps_of_one_moment"),
            )
        by_rank[dump.rank] = dump
    if not by_rank:
        raise errors[0]
    return [by_rank[rank] for rank in sorted(by_rank)], left_out_files(errors)


def _of(older: Sequence[Outdated]) -> Iterator[Limit]:
    for one in older:
        facts = {"rank": one.dump.rank, "group": one.group}
        yield message("missing.older_dump", **facts, issued=one.issued, completed=one.completed)


def _limits(dumps: Sequence[Dump], world_size: int) -> Iterator[Limit]:
    yield from missing_ranks([dump.rank for dump in dumps], world_size, is_named=True)
    holders: dict[Oddity, list[int]] = defaultdict(list)
    times: Counter[Oddity] = Counter()
    for dump in dumps:
        times += dump.oddities
        for oddity in dump.oddities:
            holders[oddity].append(dump.rank)
    for oddity, ranks in holders.items():
        note = _note(oddity, times[oddity])
        yield from shared_notes((rank, [note]) for rank in ranks)


def _note(oddity: Oddity, count: int) -> Message:
    """Return what an oddity of some ranks is, and how often it is there."""
    match oddity:
        case Oddity.STATUS_WITHOUT_NAME:
            return message("missing.status_without_name")
        case Oddity.UNREADABLE_MEMBERS:
            return message("missing.unreadable_members", count=count)
        case Oddity.ENTRY_WITHOUT_GROUP:
            return message("missing.operations_without_place", count=count)
        case Oddity.COALESCED_PART:
            return message("assumed.coalesced_parts", count=count)
