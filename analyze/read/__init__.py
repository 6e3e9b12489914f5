"""Other tools' traces, read into the tables that our own captures fill.

The format is recognised by what is in the files; docs/inputs.md says what each
format gives and what it cannot give.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from meshscope.probe.schema.errors import RunDirectoryError, TraceFormatError
from meshscope.probe.schema.manifest import MANIFEST_NAME, read_json
from meshscope.probe.schema.rundir import name_a_run_in

from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import message
from .archives import unpack_archives
from .detect import MEMORY_FORMATS, InputFile, InputFormat, classify
from .foreign import nothing_readable
from .input_paths import Found, input_file, look
from .left_out import left_out_files
from .mixed_formats import left_out, refuse_several_jobs
from .packed import unpack
from .reading import Reading
from .scratch import Scratch

__all__ = ["import_trace"]


def import_trace(
    path: Path, *, files: Sequence[Path] | None = None, reading: Reading | None = None
) -> Trace:
    """Read a file, a folder (with all below it) or a glob that is no meshscope run directory.

    Files of a folder that are no trace are left out and counted in ``limits``.

    Args:
        path: What the user named; it becomes the name of the run.
        files: The files to read, where they are not those that ``path`` stands for.
        reading: Where large tables go, and in how many processes files are read.

    Raises:
        TraceFormatError: Nothing is there, nothing there is a trace, or what is
            there cannot be one run.
    """
    found = look(path) if files is None else Found([input_file(one) for one in files])
    with Scratch() as scratch:
        plain, packed = unpack(found.files, scratch)
        unpacked = unpack_archives(plain, scratch)
        by_format, unopened = _by_format(unpacked.files)
        unopened += packed
        limits: list[Limit] = [*found.limits, *unpacked.limits, *left_out_files(unopened)]
        trace = _import_files(path, by_format, scratch, reading)
        if trace is None:
            raise unopened[0] if unopened else _unreadable(path, by_format)
    return replace(trace, limits=(*limits, *trace.limits))


def _by_format(
    files: Sequence[InputFile],
) -> tuple[dict[InputFormat, list[InputFile]], list[TraceFormatError]]:
    """Return the files by what they hold, and an error for each that cannot be opened."""
    found: dict[InputFormat, list[InputFile]] = defaultdict(list)
    unopened = []
    for file in files:
        try:
            found[classify(file)].append(file)
        except OSError as error:
            what = message("refused.not_opened", reason=error.strerror)
            unopened.append(
                TraceFormatError(what, where=file.label, remedy=message("advice.permissions"))
            )
    return found, unopened


def _import_files(
    path: Path,
    by_format: Mapping[InputFormat, list[InputFile]],
    scratch: Scratch,
    reading: Reading | None,
) -> Trace | None:
    """Read the files of the first format in this order that there is; None if there is none.

    A reader is imported once there is something for it to read.

    Raises:
        TraceFormatError: They cannot be read, or cannot be one run.
    """
    refuse_several_jobs(path, by_format)
    others = partial(left_out, by_format)
    if timelines := by_format[InputFormat.NDTIMELINE]:
        from .ndtimeline.importer import import_ndtimeline

        trace = import_ndtimeline(path, timelines)
        limits = others(InputFormat.NDTIMELINE)
        return replace(trace, limits=(*limits, *trace.limits))
    if traces := by_format[InputFormat.KINETO]:
        return _import_kineto(path, traces, scratch, reading, others(InputFormat.KINETO))
    if exports := by_format[InputFormat.NSIGHT]:
        from .nsight.importer import import_nsight

        return import_nsight(path, exports, limits=others(InputFormat.NSIGHT))
    if dumps := by_format[InputFormat.PIPELINE_VISUALISER]:
        from .pipeline_visualiser.importer import import_pipeline_visualiser

        configs = by_format[InputFormat.PIPELINE_CONFIG]
        limits = others(InputFormat.PIPELINE_VISUALISER, InputFormat.PIPELINE_CONFIG)
        return import_pipeline_visualiser(path, dumps, configs, limits=limits)
    if logs := by_format[InputFormat.NCCL_INSPECTOR]:
        from .nccl_inspector.importer import import_nccl_inspector

        return import_nccl_inspector(path, logs, limits=others(InputFormat.NCCL_INSPECTOR))
    if rings := by_format[InputFormat.FLIGHT_RECORDER]:
        from .flight_recorder.importer import import_flight_recorder

        return import_flight_recorder(path, rings, limits=others(InputFormat.FLIGHT_RECORDER))
    if records := [(file, kind) for kind in MEMORY_FORMATS for file in by_format[kind]]:
        from .memory.importer import import_memory

        return import_memory(path, records, limits=others(*MEMORY_FORMATS))
    return None


def _import_kineto(
    path: Path,
    traces: Sequence[InputFile],
    scratch: Scratch,
    reading: Reading | None,
    limits: Sequence[Limit],
) -> Trace:
    """Read Kineto traces: those of several ranks in one file apart, and halves of events joined."""
    from .kineto.chrome_pairs import complete_pairs
    from .kineto.importer import import_kineto
    from .kineto.merged import split_merged

    paired, alone = complete_pairs(traces, scratch)
    parts, merged = split_merged(paired, scratch)
    return import_kineto(path, parts, limits=[*limits, *alone, *merged], reading=reading)


def _damaged_run(path: Path) -> TraceFormatError:
    """Return the error for a run that nothing but its manifest tells from a folder of files."""
    try:
        read_json(path / MANIFEST_NAME)
        damage: object = message("refused.no_format_version")
    except RunDirectoryError as error:
        damage = error.said["what"]
    return TraceFormatError(
        message("refused.run_manifest", file=MANIFEST_NAME, damage=damage),
        where=str(path),
        remedy=message("advice.ingest_again"),
    )


def _unreadable(path: Path, by_format: Mapping[InputFormat, list[InputFile]]) -> TraceFormatError:
    pages = by_format.get(InputFormat.MEMORY_PAGE)
    if pages:
        return TraceFormatError(
            message("refused.page_of_memory"),
            where=pages[0].label,
            remedy=message("advice.export_memory"),
        )
    if path.is_dir() and (path / "tables").is_dir() and (path / MANIFEST_NAME).exists():
        return _damaged_run(path)
    if path.is_dir() and (remedy := name_a_run_in(path)):
        return TraceFormatError(message("refused.folder_of_runs"), where=str(path), remedy=remedy)
    unknown = by_format.get(InputFormat.UNKNOWN, [])
    return nothing_readable(path, sum(map(len, by_format.values())), unknown)
