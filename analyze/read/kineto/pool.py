"""The files of several ranks, read in several processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshscope.probe.schema.errors import TraceFormatError

from ...tables.processes import WorkerDied, map_in_processes, report_bytes
from ...wording.message import message
from ..files import InputFile
from ..reading import Reading
from .rank import Place, RankFile, read_rank_file

_PAYS_BYTES = 300_000_000
"""JSON of which half takes longer to read than processes take to start, 0.7 s of CPU time."""
_COMPRESSION = 10
"""Size of profiler JSON, which repeats its words, over that of its gzip file."""


@dataclass(frozen=True, slots=True)
class _Task:
    file: InputFile
    place: Place
    default_rank: int | None


@dataclass(frozen=True, slots=True)
class _Refused:
    """A ``TraceFormatError``, which cannot be sent between processes; with its codes and values."""

    said: Mapping[str, object]
    where: str


def pays_processes(files: Sequence[InputFile]) -> bool:
    """Return whether files are large enough, and on disk, so that processes save time."""
    if len(files) < 2 or any(file.content is not None for file in files):
        return False
    return sum(map(_json_bytes, files)) >= _PAYS_BYTES


def read_in_processes(
    files: Sequence[InputFile], folder: Path, reading: Reading, default_rank: int | None
) -> Iterator[RankFile | TraceFormatError]:
    """Yield what each file gave, in the order of the files.

    A file whose process is killed, even alone, counts as one that cannot be read.

    Raises:
        OSError: A file cannot be read, or a table cannot be written.
    """
    tasks = [
        _Task(file, Place(folder, f"file-{at:05d}"), default_rank) for at, file in enumerate(files)
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
