"""Open whatever the user points at: our run directories or other tools' traces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from glob import has_magic
from pathlib import Path

from meshscope.probe.reader.wanted import MOST_ROWS, MOST_ROWS_VARIABLE, Wanted
from meshscope.probe.schema.errors import ConfigError, RunDirectoryError
from meshscope.probe.schema.rundir import is_run_directory

from ..read import import_trace
from ..read.reading import Reading
from ..tables.trace import Trace
from ..wording.message import message
from .ingested import is_ingested, read_ingested, rows_by_rank
from .kept_tables import read_kept
from .passes import FOREIGN, passed
from .possible_times import with_possible_times


def load_trace(
    path: str | Path, *, keeps_traces: bool = False, wanted: Wanted | None = None
) -> Trace:
    """Return the capture at ``path`` on one clock, with the axis of every group inferred.

    Args:
        path: A run directory of ours, or a file, folder or glob of another tool. Nothing is
            written beside it, unless ``keeps_traces``.
        keeps_traces: Keep in a run that is still being recorded what was read of its deep
            traces, for the next look.
        wanted: How much of a large run directory is read; as much as there is room for, if not given.

    Raises:
        RunDirectoryError: Nothing is there, or nothing in it can be read.
        ConfigError: The variable for how much room there is holds no number.
        FormatVersionError: It was written by a format that we do not know.
        TraceFormatError: It is no trace of a known format.
    """
    path = Path(path)
    if not path.exists() and not has_magic(str(path)):
        raise RunDirectoryError(
            message("refused.no_such_path"), where=str(path), remedy=message("advice.path")
        )
    if not is_run_directory(path):
        return read_traces(path)
    if is_ingested(path):
        wanted = wanted or Wanted()
        has_room = wanted.steps is None or rows_by_rank(path).total() <= wanted.most_rows
        steps = None if has_room else wanted.steps
        return with_possible_times(read_ingested(path, only=wanted.ranks, steps=steps))
    wanted = wanted or Wanted(most_rows=most_rows())
    kept = read_kept(path, wanted)
    if kept is not None:
        return kept
    # The readers of records take a twentieth of a short command: traces of other tools need none.
    from .captured import read_capture

    return read_capture(path, wanted, keeps_traces=keeps_traces)


def read_traces(
    path: Path, *, files: Sequence[Path] | None = None, reading: Reading | None = None
) -> Trace:
    """Return other tools' traces as ``load_trace`` does.

    Args:
        path: A file, folder or glob; it becomes the name of the run.
        files: The files to read, where they are not those that ``path`` stands for.
        reading: Where large tables go, and in how many processes files are read.

    Raises:
        TraceFormatError: It is no trace of a known format.
    """
    return passed(import_trace(path, files=files, reading=reading), FOREIGN)


def most_rows() -> int:
    """Return how many rows of passes and communication of a run directory there is room for.

    Raises:
        ConfigError: The variable for it holds no such number.
    """
    given = os.environ.get(MOST_ROWS_VARIABLE, "").strip()
    if not given:
        return MOST_ROWS
    if not given.isascii() or not given.isdecimal() or not int(given[:19]) > 0:
        raise ConfigError(
            message("refused.no_row_count", text=given),
            where=MOST_ROWS_VARIABLE,
            remedy=message("advice.row_count", rows=MOST_ROWS),
        )
    return int(given[:19])
