"""Files of several formats behind one path: of one job, or of several.

A job may leave files of many kinds beside each other: a profiler's traces, snapshots of
its memory, dumps of its collectives. Only one kind of them is read as the run. But two
*timelines* of different formats in folders apart from each other are two jobs, of which
one would be shown under the name of both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import listed

from ..wording.limits import Limit
from ..wording.message import message
from .detect import classify, why_unknown
from .files import InputFile
from .formats import FORMATS, UNKNOWN
from .input_paths import input_file

_NAMES = {one.kind: one.name for one in FORMATS}
_SETTINGS = re.compile(r"meta-.*\.ya?ml")
"""Files that belong to an NDTimeline job, and are looked for by the reader of it."""
_SHOWN = 4
"""Files that are named where more are left out."""


def refuse_several_jobs(path: Path, by_format: Mapping[str, Sequence[InputFile]]) -> None:
    """Refuse timelines of different formats that lie in folders apart from each other.

    A timeline in or below the folder of the one that is read belongs to its job, such as
    a picture of it that another tool has drawn.

    Raises:
        TraceFormatError: There is one elsewhere; names both.
    """
    present = [one.kind for one in FORMATS if one.is_timeline and by_format.get(one.kind)]
    if len(present) < 2:
        return
    read, *others = present
    folders = {_folder(file) for file in by_format[read]}
    for kind in others:
        for file in by_format[kind]:
            folder = _folder(file)
            if folders.isdisjoint((folder, *folder.parents)):
                first = by_format[read][0].label
                raise TraceFormatError(
                    message(
                        "refused.formats_of_jobs",
                        first=first,
                        format=_NAMES[read],
                        second=file.label,
                        other_format=_NAMES[kind],
                    ),
                    where=str(path),
                    remedy=message("advice.folder_of_one_job"),
                )


def read_files(files: Sequence[Path]) -> list[Path]:
    """Return the files whose content makes a difference: those of a known format, and settings.

    A note beside the traces is none; all files where there is nothing else.
    """
    return [file for file in files if _is_read(file)] or list(files)


def _is_read(file: Path) -> bool:
    if _SETTINGS.fullmatch(file.name):
        return True
    try:
        return classify(input_file(file)) != UNKNOWN
    except OSError:
        return True


def left_out(by_format: Mapping[str, Sequence[InputFile]], *used: str) -> list[Limit]:
    """Return what is said of files that are not read, one sentence for each format."""
    rest = {
        kind: [file for file in files if not _SETTINGS.fullmatch(file.name)]
        for kind, files in by_format.items()
        if kind not in used
    }
    return [_left_out(kind, files) for kind, files in rest.items() if files]


def _left_out(kind: str, files: Sequence[InputFile]) -> Limit:
    if kind == UNKNOWN:
        # Only those that are named are looked into.
        reasons = ((file.name, why_unknown(file)) for file in files)
        names = (f"{name} ({why})" for name, why in reasons)
    else:
        names = (file.name for file in files)
    shown = listed(names, count=len(files), most=_SHOWN)
    if kind == UNKNOWN:
        return message("missing.files_of_no_format", count=len(files), named=shown)
    return message(
        "missing.files_of_other_format", count=len(files), format=_NAMES[kind], named=shown
    )


def _folder(file: InputFile) -> PurePath:
    """Return the folder of a file; an archive is one."""
    return PurePath(file.label.replace("!", "/")).parent
