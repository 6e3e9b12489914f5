"""Dumps of PyTorch's flight recorder, one file per rank, as one Trace.

A dump is made when a collective times out, or on request. It shows what each
rank had asked for and what had not come back; it has no steps and no compute.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshscope.analyze.tables.trace import FLIGHT_RECORDER, Trace
from meshscope.analyze.wording.words import counted
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.tables import RUN
from meshscope.probe.schema.terms import CaptureLevel

from ...wording.limits import Limit
from ..detect import InputFile
from .dump import Dump, read_dump
from .tables import dump_tables

_LISTED = 16


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
    found = dump_tables(dumps)
    members = {rank for ranks in found.members.values() for rank in ranks}
    world_size = max(members | {dump.rank for dump in dumps}) + 1
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
        limits=(*limits, *damaged, *_limits(dumps, world_size), *found.limits),
        origin=FLIGHT_RECORDER,
    )


def _read_all(files: Sequence[InputFile]) -> tuple[list[Dump], list[str]]:
    """Return the readable dumps in rank order, and a sentence for each unreadable file."""
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
                f"is rank {dump.rank}, and so is {by_rank[dump.rank].label}",
                where=dump.label,
                remedy="Give the dumps of one moment, one for each rank",
            )
        by_rank[dump.rank] = dump
    if not by_rank:
        raise errors[0]
    return [by_rank[rank] for rank in sorted(by_rank)], [f"Left out: {e}." for e in errors]


def _limits(dumps: Sequence[Dump], world_size: int) -> Iterator[str]:
    if len(dumps) < world_size:
        yield (
            f"{len(dumps)} of {world_size} ranks, by the groups, are here: "
            f"{listed([dump.rank for dump in dumps], most=_LISTED)}."
        )
    holders: dict[str, list[int]] = defaultdict(list)
    times: Counter[str] = Counter()
    for dump in dumps:
        for note, count in Counter(dump.notes).items():
            holders[note].append(dump.rank)
            times[note] += count
    for note, ranks in holders.items():
        more = f" ({counted(times[note], 'time')})" if times[note] > len(ranks) else ""
        yield f"Rank {listed(ranks, most=_LISTED)}: {note}{more}."
