"""Files of any known format as one trace: recognised, unpacked, handed to the reader of their format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from meshscope.probe.schema.errors import RunDirectoryError, TraceFormatError
from meshscope.probe.schema.manifest import MANIFEST_NAME, read_json
from meshscope.probe.schema.rundir import name_a_run_in

from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import message
from .archives import unpack_archives
from .detect import classify
from .file_limits import left_out_files
from .files import InputFile
from .formats import FORMATS, MEMORY_PAGE, UNKNOWN, Inputs
from .input_paths import Found, input_file, look
from .mixed_formats import left_out, refuse_several_jobs
from .packed import unpack
from .reading import Reading
from .scratch import Scratch


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
) -> tuple[dict[str, list[InputFile]], list[TraceFormatError]]:
    """Return the files by what they hold, and an error for each that cannot be opened."""
    found: dict[str, list[InputFile]] = defaultdict(list)
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
    by_format: Mapping[str, list[InputFile]],
    scratch: Scratch,
    reading: Reading | None,
) -> Trace | None:
    """Read the files of the first format in the order of ``FORMATS`` that there is; None if there is none.

    Raises:
        TraceFormatError: They cannot be read, or cannot be one run.
    """
    refuse_several_jobs(path, by_format)
    for one in FORMATS:
        if one.read is not None and by_format[one.kind]:
            limits = left_out(by_format, one.kind, *one.beside)
            beside = {kind: by_format[kind] for kind in one.beside}
            inputs = Inputs(path, by_format[one.kind], beside, limits, scratch, reading)
            return one.read(inputs)
    return None


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


def _unreadable(path: Path, by_format: Mapping[str, list[InputFile]]) -> TraceFormatError:
    pages = by_format.get(MEMORY_PAGE)
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
    unknown = by_format.get(UNKNOWN, [])
    # What tells the files of other tools is looked at only where nothing can be read.
    from .foreign import nothing_readable

    return nothing_readable(path, sum(map(len, by_format.values())), unknown)
