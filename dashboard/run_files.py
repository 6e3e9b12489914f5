"""The files of a run: what state they are in, and whether all of them are inside it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR

from meshscope.analyze.scale.store import FOLDER as SUMMARIES
from meshscope.analyze.tables.table_folder import DRAFT, FOLDER
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.rundir import is_run_directory

ANALYSIS = "analysis"
"""The folder of a run in which its analysis is kept."""
DERIVED = (FOLDER, SUMMARIES, ANALYSIS)
"""Folders of a run into which an analysis may write: that is no news of the run."""

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
                    f"holds a link to outside the run: {shown}",
                    where=path.name,
                    remedy="Copy what it stands for into the run",
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
