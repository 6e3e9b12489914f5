"""From other tools' files to a run directory, once for each content."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from glob import has_magic
from os.path import commonpath
from pathlib import Path

import msgspec

from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import listed, printable
from meshscope.probe.schema.rundir import is_run_directory

from .. import load
from ..read.input_paths import look
from ..read.mixed_formats import read_files
from ..read.reading import OnBytes, Reading, ignore_bytes
from ..read.source_files import SourceIndex, content_key, source_files, total_size
from ..tables.table_folder import FOLDER, drafted
from ..tables.trace import Trace
from ..wording.limits import limit_texts
from ..wording.message import message, message_of_cell
from ..wording.words import counted
from .ingested import (
    Ingested,
    find_ingested,
    ingested_runs,
    is_ingested,
    read_ingested,
    write_ingested,
)

_CANNOT_WRITE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    # A folder of runs that is a file, or that nobody can make, as below /proc.
    errno.EEXIST,
    errno.ENOTDIR,
    errno.ENOENT,
)


_MOST_GROUPS = 16
"""Of more groups those of one kind share a line: a screen has some 24."""


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs are kept, and how their sources are read."""

    runs_dir: Path
    workers: int = 1
    """Most processes that read files at the same time."""
    on_bytes: OnBytes = ignore_bytes
    """Told how many more bytes of the source were read."""
    most_rows: int | None = None
    """Records of a run directory that there is room for; the usual number if not given."""
    cycle: int | None = None
    """Which cycle of a profiler that ran several is kept, from 1; None leaves it to the reader."""


def ingest(source: Path | Sequence[Path], keeping: Keeping) -> Ingested:
    """Read traces and keep their tables; the same content is read only once.

    Args:
        source: A file, folder or glob of one job, or several files of one.
        keeping: Where the run goes.

    Raises:
        TraceFormatError: There is no file, or no trace of a known format.
        OSError: A file cannot be read or written.
    """
    paths = [source] if isinstance(source, Path) else list(source)
    files = _files(paths, keeping.runs_dir)
    index = SourceIndex(keeping.runs_dir)
    known = _find(index.find(files, keeping.cycle), keeping.runs_dir)
    if known is None:
        state = index.state(files, keeping.cycle)
        counted_in = read_files(files)
        size = total_size(counted_in)
        if any(one.get("source_bytes") == size for _, one in ingested_runs(keeping.runs_dir)):
            key, _ = content_key(counted_in, keeping.cycle)
            known = _find(key, keeping.runs_dir)
        reused = known is not None
        if known is None:
            key, known = _read(paths, files, counted_in, keeping)
        # The index saves time only: a folder that cannot be written does without.
        with suppress(OSError):
            index.remember(files, key, seen=state, cycle=keeping.cycle)
    else:
        reused, size = True, total_size(files)
    return Ingested(path=known, trace=read_ingested(known), source_bytes=size, reused=reused)


def open_run(
    path: Path,
    keeping: Keeping,
    tell: Callable[[str], None],
    steps: tuple[int, int] | None = None,
) -> Trace:
    """Open what the user names; traces of other tools are ingested first.

    A run of ours gets its tables kept in it once it is closed. If the folder of runs
    cannot be written, traces are analysed without being kept.

    Args:
        path: A run directory, or a file, folder or glob of another tool.
        keeping: Where traces are kept.
        tell: Gets a clause on what was kept, or why nothing was.
        steps: First and last step that are to be looked at. Of a large run directory the records of
            others are left out; of anything else all is opened.

    Raises:
        MeshscopeError: Nothing is there, or nothing in it can be read.
        OSError: A file cannot be read.
    """
    if not path.exists() and not has_magic(str(path)):
        return load.load_trace(path)
    if is_run_directory(path):
        if is_ingested(path):
            return load.load_trace(
                path, wanted=Wanted(steps=steps, most_rows=keeping.most_rows or load.most_rows())
            )
        return _open_capture(path, keeping, steps)
    try:
        found = ingest(path, keeping)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or _is_below(error.filename, path):
            raise
        tell(
            f"{keeping.runs_dir}: {os.strerror(error.errno)}: the traces are analysed, but not kept"
        )
        return load.read_traces(path, reading=Reading(workers=keeping.workers))
    if not found.reused:
        tell(f"kept as {found.path}, which opens at once from now on")
    return found.trace


def understood(trace: Trace) -> list[str]:
    """Return what was understood of a trace, one line a fact."""
    steps = len(trace.tables["step"]["step"].unique()) if trace.row_count("step") else 0
    world = trace.run.get("world_size")
    lines = [
        f"format: {trace.origin}",
        f"ranks: {len(trace.ranks)} of {world or 'an unknown number'}",
        f"steps: {steps}",
    ]
    rows = [(name, count) for name in trace.tables if (count := trace.row_count(name))]
    lines.append("rows: " + ", ".join(f"{name} {count:,}" for name, count in rows))
    lines += _groups(trace)
    lines += [f"limit: {text}" for text in limit_texts(trace.limits)]
    return [printable(line) for line in lines]


def _groups(trace: Trace) -> list[str]:
    """Return a line for each group; of many, one for each kind."""
    groups = trace.tables["group"].to_pylist() if trace.row_count("group") else []
    kinds: dict[tuple[str, int, str], list[str]] = {}
    for group in groups:
        kind = (
            str(group["axis"]),
            len(group["ranks"]),
            str(message_of_cell(group["evidence"])) or "no evidence",
        )
        kinds.setdefault(kind, []).append(str(group["group_id"]))
    lines = []
    for (axis, size, evidence), names in kinds.items():
        what = f"axis {axis}, {counted(size, 'rank')}"
        if len(groups) > _MOST_GROUPS and len(names) > 1:
            shown = listed(names, most=3)
            lines.append(f"{len(names)} groups: {what} each ({evidence}): {shown}")
        else:
            lines += [f"group {name}: {what} ({evidence})" for name in names]
    return lines


def _open_capture(path: Path, keeping: Keeping, steps: tuple[int, int] | None) -> Trace:
    """Return a capture of ours, with its tables kept for the next time where that may be."""
    wanted = Wanted(steps, keeping.most_rows or load.most_rows(), keeping.on_bytes)
    kept = load.read_kept(path, wanted)
    if kept is not None:
        return kept
    trace = load.load_trace(path, keeps_traces=True, wanted=wanted)
    load.keep(trace, wanted)
    return trace


def _files(paths: Sequence[Path], runs_dir: Path) -> list[Path]:
    """Return the files behind the paths, without the runs that lie below one of them."""
    runs = runs_dir.resolve()
    if not any(path.is_dir() and runs.is_relative_to(path.resolve()) for path in paths):
        return source_files(paths)
    return [file for file in source_files(paths) if not _is_below(file, runs)]


def _find(key: str | None, runs_dir: Path) -> Path | None:
    return None if key is None else find_ingested(runs_dir, key)


def _is_below(file: str | Path | None, folder: Path) -> bool:
    return file is not None and Path(file).resolve().is_relative_to(folder.resolve())


def _read(
    paths: Sequence[Path], files: Sequence[Path], counted_in: Sequence[Path], keeping: Keeping
) -> tuple[str, Path]:
    """Read traces and write a run; return the key of the content and the run.

    Args:
        paths: What was given.
        files: All files behind it.
        counted_in: Those whose content is the key.
        keeping: Where the run goes.
    """
    named = paths[0] if len(paths) == 1 else Path(commonpath([f.resolve().parent for f in files]))
    with drafted(keeping.runs_dir) as draft, ThreadPoolExecutor(1) as background:
        # Hashing leaves the interpreter free, so it costs no time where there is a second CPU.
        hashing = background.submit(content_key, counted_in, keeping.cycle)
        folder = draft / FOLDER
        folder.mkdir()
        reading = Reading(
            folder=folder,
            workers=keeping.workers,
            on_bytes=keeping.on_bytes,
            cycle=keeping.cycle,
        )
        trace = load.read_traces(named, files=files, reading=reading)
        if keeping.cycle is not None and not trace.capabilities.repeats_cycles:
            raise TraceFormatError(
                message("refused.cycle_of_no_profiler"),
                where=str(named),
                remedy=message("advice.no_cycle"),
            )
        skipped = [limit for path in paths if path.is_dir() for limit in look(path).limits]
        trace = replace(trace, limits=(*skipped, *trace.limits))
        key, size = hashing.result()
        known = find_ingested(keeping.runs_dir, key)
        if known is None:
            name = _name(paths, named)
            known = write_ingested(trace, draft, key, name=name, source_bytes=size)
    return key, known


def _name(paths: Sequence[Path], named: Path) -> str:
    """Return what people call a source: a glob is called after its folder."""
    if len(paths) == 1 and has_magic(str(named)) and not named.exists():
        named = Path(*[part for part in named.parent.parts if not has_magic(part)])
    return named.resolve().name
