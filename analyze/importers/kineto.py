"""Kineto traces of the PyTorch profiler, one file per rank, as one Trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from meshscope.analyze.trace import Trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import COLLECTIVE, GROUP, P2P, RUN, TABLES
from meshscope.probe.schema.terms import CaptureLevel

from .detect import InputFile, InputFormat, classify, unpack
from .kineto_communication import CommunicationFrames, assemble
from .kineto_rank import RankFile, read_rank_file


def import_kineto(path: Path, files: Sequence[InputFile], *, limits: Sequence[str] = ()) -> Trace:
    """Read Kineto files, or tar archives of them, into the tables.

    Ranks keep their numbers: by the header, else by the file name, never by the
    order of the files. A single file that names no rank is rank 0.

    Args:
        path: What the user named; it becomes the name of the run.
        files: Files recognised as Kineto JSON or as archives.
        limits: What is already known to be missing.

    Raises:
        TraceFormatError: Two files claim one rank, or no file can be read.
    """
    ranks, damaged = _read_all(path, files)
    world_size = max(r.world_size or 0 for r in ranks) or ranks[-1].rank + 1
    communication = assemble([r.communication for r in ranks], range(world_size))
    return Trace(
        path=path,
        run=_run(path, ranks, world_size),
        layout=None,
        ranks=tuple(r.rank for r in ranks),
        tables=_tables(ranks, communication),
        limits=(*limits, *damaged, *_limits(ranks, world_size)),
        origin="kineto",
    )


def _read_all(path: Path, files: Sequence[InputFile]) -> tuple[list[RankFile], list[str]]:
    """Return the readable ranks in rank order, and a sentence for each unreadable file."""
    by_rank: dict[int, RankFile] = {}
    errors: list[TraceFormatError] = []
    default_rank = 0 if len(files) == 1 and classify(files[0]) == InputFormat.KINETO else None
    for file in _members(files, errors):
        try:
            one = read_rank_file(file, default_rank=default_rank)
        except TraceFormatError as error:
            errors.append(error)
            continue
        if one.rank in by_rank:
            raise TraceFormatError(
                f"is rank {one.rank}, and so is {by_rank[one.rank].label}",
                where=one.label,
                remedy="Give the files of one run, one for each rank",
            )
        by_rank[one.rank] = one
    if not by_rank:
        raise errors[0] if errors else TraceFormatError("holds no trace", where=str(path))
    return [by_rank[rank] for rank in sorted(by_rank)], [f"Left out: {e}." for e in errors]


def _members(files: Sequence[InputFile], errors: list[TraceFormatError]) -> Iterator[InputFile]:
    """Yield the Kineto files, those in archives included; only one archive member is held."""
    for file in files:
        if classify(file) != InputFormat.ARCHIVE:
            yield file
            continue
        try:
            yield from (m for m in unpack(file) if classify(m) == InputFormat.KINETO)
        except TraceFormatError as error:
            errors.append(error)


def _run(path: Path, ranks: Sequence[RankFile], world_size: int) -> dict[str, object]:
    names = {r.device_name for r in ranks if r.device_name}
    has_device = any(r.device_events for r in ranks)
    known = {
        "run_id": path.name,
        "world_size": world_size,
        "device_name": ", ".join(sorted(names)) or None,
        "capture_level": (CaptureLevel.KERNELS if has_device else CaptureLevel.STEPS).value,
    }
    return dict.fromkeys(RUN.column_names()) | known


def _tables(ranks: Sequence[RankFile], communication: CommunicationFrames) -> dict[str, pa.Table]:
    tables = {name: spec.empty() for name, spec in TABLES.items()}
    for name in ranks[0].tables:
        parts = pa.concat_tables([r.tables[name] for r in ranks])
        tables[name] = parts.unify_dictionaries().combine_chunks()
    for spec, frame in (
        (COLLECTIVE, communication.collective),
        (P2P, communication.p2p),
        (GROUP, communication.group),
    ):
        if len(frame):
            tables[spec.name] = spec.conform(pa.Table.from_pandas(frame, preserve_index=False))
    return tables


def _limits(ranks: Sequence[RankFile], world_size: int) -> Iterator[str]:
    """Yield what the files do not hold, one sentence for all ranks that share it."""
    if not any(r.world_size for r in ranks):
        yield f"No file names the world size; it is taken to be {world_size}."
    elif len(ranks) < world_size:
        present = _shorten([r.rank for r in ranks])
        yield f"The world has {world_size} ranks, of which {len(ranks)} are here: {present}."
    if len({r.has_base_time for r in ranks}) > 1:
        yield "Some files have a time base and some have none: times of ranks cannot be compared."
    clauses: dict[str, list[int]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for one in ranks:
        for note in one.notes:
            clauses[note].append(one.rank)
        counts.update(one.communication.counts)
    for clause, where in clauses.items():
        yield f"Rank {_shorten(where)}: {clause}."
    for clause, count in counts.items():
        yield f"{count} {clause}."


def _shorten(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} … ({len(ranks)} ranks)"
