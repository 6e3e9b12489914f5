"""Kineto traces of the PyTorch profiler, one file per rank, read in several processes as one Trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import RUN, TABLES
from meshscope.probe.schema.terms import CaptureLevel

from ...tables.processes import WorkerDied, map_in_processes, report_bytes
from ...tables.stored_tables import STORED, StoredTable, Tables, open_stored
from ...wording.limits import Limit, has_code
from ...wording.message import message
from ..file_limits import left_out_files, missing_ranks, shared_notes
from ..files import InputFile
from ..reading import Reading, TemporaryFolder
from .communication import CommunicationTables, assemble
from .copies import without_copies
from .counted import counted_limits
from .cut_files import leave_out_cut_steps
from .cycles import one_cycle
from .jobs import one_job
from .lone_files import UNKNOWN_RANKS, lacks_peers
from .mesh_names import ranks_by_places
from .rank import Place, RankFile, read_rank_file

_OF_WORKER = re.compile(r"(.+)\.\d{10,20}\.pt\.trace\.json")
"""Name that ``tensorboard_trace_handler`` gives: host and process, then the time, of each cycle."""
_PAYS_BYTES = 300_000_000
"""JSON of which half takes longer to read than processes take to start, 0.7 s of CPU time."""
_COMPRESSION = 10
"""Size of profiler JSON, which repeats its words, over that of its gzip file."""


class _Task(msgspec.Struct, frozen=True):
    file: InputFile
    place: Place
    default_rank: int | None


class _Refused(msgspec.Struct, frozen=True):
    """A ``TraceFormatError``, which cannot be sent between processes; with its codes and values."""

    said: Mapping[str, object]
    where: str


def pays_processes(files: Sequence[InputFile]) -> bool:
    """Return whether files are large enough, and on disk, so that processes save time."""
    if len(files) < 2 or any(file.content is not None for file in files):
        return False
    return sum(map(_json_bytes, files)) >= _PAYS_BYTES


def read_in_processes(
    files: Sequence[InputFile], folder: Path, reading: Reading, rank_of: Mapping[str, int]
) -> Iterator[RankFile | TraceFormatError]:
    """Yield what each file gave, in the order of the files.

    A file whose process is killed, even alone, counts as one that cannot be read.

    Raises:
        OSError: A file cannot be read, or a table cannot be written.
    """
    tasks = [
        _Task(file, Place(folder, f"file-{at:05d}"), rank_of.get(file.label))
        for at, file in enumerate(files)
    ]
    results = map_in_processes(_read, tasks, workers=reading.workers, on_bytes=reading.on_bytes)
    for task, result in zip(tasks, results, strict=True):
        if isinstance(result, WorkerDied):
            yield TraceFormatError(
                message("refused.reader_killed"),
                where=task.file.label,
                remedy=message("advice.more_memory"),
            )
        elif isinstance(result, _Refused):
            yield TraceFormatError(**result.said, where=result.where)
        else:
            yield result


def _read(task: _Task) -> RankFile | _Refused:
    try:
        return read_rank_file(
            task.file, task.place, default_rank=task.default_rank, on_bytes=report_bytes
        )
    except TraceFormatError as error:
        return _Refused(error.said, error.where)


def _json_bytes(file: InputFile) -> int:
    """Return about how much JSON a file holds."""
    size = file.path.stat().st_size
    with file.path.open("rb") as stream:
        return size * (_COMPRESSION if stream.read(2) == b"\x1f\x8b" else 1)


def import_kineto(
    path: Path,
    files: Sequence[InputFile],
    *,
    limits: Sequence[Limit] = (),
    reading: Reading | None = None,
) -> Trace:
    """Read Kineto files into the tables.

    Ranks keep their numbers: by the header, else by the file name, never by the
    order of the files. A single file that names no rank is rank 0.

    Args:
        path: What the user named; it becomes the name of the run.
        files: Files recognised as Kineto JSON.
        limits: What is already known to be missing.
        reading: Where large tables go, and in how many processes files are read.

    Raises:
        TraceFormatError: Two files claim one rank and time, files of two jobs are mixed, or no file
            can be read.
    """
    reading = reading or Reading()
    temporary = TemporaryFolder() if reading.folder is None else None
    folder = temporary.path if temporary else cast(Path, reading.folder)
    ranks, damaged = _read_all(path, files, folder, reading)
    ranks, foreign = one_job(ranks)
    cut = list(leave_out_cut_steps(ranks))
    by_place = _by_place(files, ranks)
    world_size = max(ranks[-1].rank + 1, *(r.world_size or 0 for r in ranks))
    is_alone = _lacks_peers(ranks)
    communication = assemble([r.communication for r in ranks], range(world_size + is_alone))
    return Trace(
        path=path,
        run=_run(path, ranks, UNKNOWN_RANKS if is_alone else world_size),
        layout=None,
        ranks=tuple(r.rank for r in ranks),
        tables=Tables(_tables(ranks, communication), _stored(ranks, temporary)),
        limits=(
            *limits,
            *damaged,
            *foreign,
            *cut,
            *by_place,
            *_limits(ranks, world_size, is_alone=is_alone),
        ),
        origin="kineto",
    )


def _read_all(
    path: Path, files: Sequence[InputFile], folder: Path, reading: Reading
) -> tuple[list[RankFile], list[Limit]]:
    """Return the readable ranks in rank order, and a sentence for each file that is not used."""
    found: list[RankFile] = []
    errors: list[TraceFormatError] = []
    for one in _results(files, folder, reading):
        if isinstance(one, TraceFormatError):
            errors.append(one)
        else:
            found.append(one)
    if not found:
        raise (
            errors[0]
            if errors
            else TraceFormatError(message("refused.holds_no_trace"), where=str(path))
        )
    found, copies = without_copies(found)
    chosen, sentences = one_cycle(found, reading.cycle)
    kept = {one.label for one in chosen}
    for one in found:
        if one.label not in kept:
            for table in one.stored.values():
                table.unlink(missing_ok=True)
    chosen.sort(key=lambda one: one.rank)
    return chosen, [*left_out_files(errors), *copies, *sentences]


def _results(
    files: Sequence[InputFile], folder: Path, reading: Reading
) -> Iterator[RankFile | TraceFormatError]:
    """Yield what each file gave, in the order of the files, whoever read it."""
    rank_of = _ranks_that_none_says(files)
    if reading.workers > 1 and pays_processes(files):
        yield from read_in_processes(files, folder, reading, rank_of)
        return
    for at, file in enumerate(files):
        place = Place(folder, f"file-{at:05d}")
        try:
            default = rank_of.get(file.label)
            yield read_rank_file(file, place, default_rank=default, on_bytes=reading.on_bytes)
        except TraceFormatError as error:
            yield error


def _ranks_that_none_says(files: Sequence[InputFile]) -> dict[str, int]:
    """Return the rank of files that say none, by label: 0 of a single writer, else by their places on a mesh."""
    if _have_one_writer(files):
        return dict.fromkeys((file.label for file in files), 0)
    return ranks_by_places(files)


def _by_place(files: Sequence[InputFile], ranks: Sequence[RankFile]) -> list[Limit]:
    """Return that ranks follow the places in the names of files, where these say all there is."""
    is_unsaid = any(has_code(note, "assumed.rank_by_none") for one in ranks for note in one.notes)
    is_of_mesh = is_unsaid and not _have_one_writer(files)
    return [message("assumed.rank_by_place")] if is_of_mesh else []


def _have_one_writer(files: Sequence[InputFile]) -> bool:
    """Return whether one process wrote all files: one file, or the cycles of one worker of a profiler."""
    matches = [_OF_WORKER.match(file.name) for file in files]
    return len(files) == 1 or (all(matches) and len({one[1] for one in matches if one}) == 1)


def _lacks_peers(ranks: Sequence[RankFile]) -> bool:
    first = ranks[0]
    if len(ranks) > 1 or first.world_size:
        return False
    kernels = open_stored("kernel", {first.rank: first.stored["kernel"]})
    return lacks_peers(kernels.read(first.rank, ["category", "device"]))


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


def _tables(ranks: Sequence[RankFile], communication: CommunicationTables) -> dict[str, pa.Table]:
    tables = {name: spec.empty() for name, spec in TABLES.items() if name not in STORED}
    for name in ranks[0].tables:
        parts = pa.concat_tables([r.tables[name] for r in ranks])
        tables[name] = parts.unify_dictionaries().combine_chunks()
    return tables | communication.tables()


def _stored(ranks: Sequence[RankFile], temporary: TemporaryFolder | None) -> dict[str, StoredTable]:
    return {
        name: open_stored(name, {r.rank: r.stored[name] for r in ranks}, owner=temporary)
        for name in STORED
    }


def _limits(ranks: Sequence[RankFile], world_size: int, *, is_alone: bool) -> Iterator[Limit]:
    """Yield what the files do not hold, one sentence for all ranks that share it."""
    is_named = any(r.world_size for r in ranks)
    if is_alone:
        yield message("missing.peers_of_lone_file")
    else:
        yield from missing_ranks([r.rank for r in ranks], world_size, is_named=is_named)
    if len({r.has_base_time for r in ranks}) > 1:
        yield message("doubt.time_bases")
    yield from shared_notes((r.rank, r.notes) for r in ranks)
    yield from counted_limits(one.communication.counts for one in ranks)
