"""The files of a run: what state they are in, and whether all of them are inside it."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import NamedTuple

from meshscope.analyze.load.ingested import is_ingested
from meshscope.analyze.scale.store import FOLDER as SUMMARIES
from meshscope.analyze.tables.table_folder import DRAFT, FOLDER
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.message import message
from meshscope.probe.schema.reading import file_hash
from meshscope.probe.schema.rundir import is_run_directory

from .clock import unix_ns

ANALYSIS = "analysis"
"""The folder of a run in which its analysis is kept."""
DERIVED = (FOLDER, SUMMARIES, ANALYSIS)
"""Folders of a run into which an analysis may write: that is no news of the run."""

_SETTLED_NS = 2 * 10**9
"""A file changed later than so long before it was looked at may change again without another time."""

ContentKey = tuple[int, int, int, int]
"""Newest modification, total size, number of files, newest modification of what was recorded."""


def refuse_links_outside(path: Path) -> None:
    """Refuse a run whose files or folders are links to outside of it.

    Who may write a run could else have the dashboard read, and show, what only its user may.

    Raises:
        RunDirectoryError: It has such a link.
    """
    if not path.is_dir():
        return
    inside = os.path.join(path.resolve(), "")
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            place = os.path.join(folder, name)
            if os.path.islink(place) and not os.path.realpath(place).startswith(inside):
                shown = os.path.relpath(place, path)
                raise RunDirectoryError(
                    message("refused.link_to_outside", shown=shown),
                    where=path.name,
                    remedy=message("advice.copy_into_run"),
                )


def content_key(path: Path) -> ContentKey:
    """Return newest modification, total size and number of files: what a change alters.

    The analysis that is kept in a run alters none of them. The last is the newest modification of a
    file that no analysis wrote.
    """
    is_run = is_run_directory(path)
    # To keep an analysis in a run changes the time of its folder.
    stats, recorded_ns, places = [], [], [] if is_run else [str(path)]
    # What vanishes while we look is left out: a run of thousands of ranks is not removed at once.
    for folder, folders, files in os.walk(path):
        if is_run and folder == str(path):
            folders[:] = [one for one in folders if one != ANALYSIS and not one.startswith(DRAFT)]
        places += (os.path.join(folder, name) for name in (*folders, *files))
    derived = tuple(os.path.join(path, folder, "") for folder in DERIVED)
    for place in places:
        with suppress(FileNotFoundError):
            stat = os.lstat(place)
            stats.append(stat)
            if not S_ISDIR(stat.st_mode) and not place.startswith(derived):
                recorded_ns.append(stat.st_mtime_ns)
    newest_ns = max((stat.st_mtime_ns for stat in stats), default=0)
    size = sum(stat.st_size for stat in stats)
    return newest_ns, size, len(stats), max(recorded_ns, default=newest_ns)


class SourceState(NamedTuple):
    """The state of the files that an analysis follows from, as the file system tells it."""

    stamp: str
    is_settled: bool
    """Whether none of them changed just now, so that an equal stamp means equal contents."""


def source_state(path: Path) -> SourceState:
    """Return the state of the files of a run: names, sizes, times of contents and of the files.

    Raises:
        OSError: One is gone meanwhile.
    """
    whole, newest_ns = hashlib.sha256(), 0
    for name, place in _sources(path):
        found = place.lstat()
        times = found.st_mtime_ns, found.st_ctime_ns
        whole.update(f"{name}\0{found.st_size}\0{times}\0".encode(errors="replace"))
        newest_ns = max(newest_ns, *times)
    return SourceState(whole.hexdigest(), newest_ns + _SETTLED_NS < unix_ns())


def source_hash(path: Path) -> str:
    """Return the hash of what the files of a run hold.

    Raises:
        OSError: One cannot be read, or is no file.
    """
    whole = hashlib.sha256()
    for name, place in _sources(path):
        whole.update(f"{name}\0".encode(errors="replace"))
        whole.update(bytes.fromhex(file_hash(place)))
    return whole.hexdigest()


def _sources(path: Path) -> list[tuple[str, Path]]:
    """Return the files that an analysis follows from, by name; not what analyses have written."""
    if not path.is_dir():
        return [(path.name, path)]
    # The tables of other tools' traces are the run; those of a capture were made from it.
    derived = set(DERIVED) if is_run_directory(path) else set()
    derived -= {FOLDER} if is_ingested(path) else set()
    found = []
    for folder, folders, files in os.walk(path):
        if folder == str(path):
            folders[:] = [
                one for one in folders if one not in derived and not one.startswith(DRAFT)
            ]
        found += [Path(folder, name) for name in files]
    return sorted((str(place.relative_to(path)), place) for place in found)
