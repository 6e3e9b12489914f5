"""The recordings of ranks as others see them: which begin, and how the process of each ended.

A run of thousands of ranks has as many directories, and the launcher and the agent of
every node look for new ones, mostly on a file system that all nodes share. So a look is
one ``stat`` unless the run directory has changed, and a directory is reported once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..clock import now_ns, unix_ns
from ..recording.rank_manifest import boot_id
from ..schema.manifest import ENDED_NAME, rank_of_name, write_json
from ..schema.tables import FORMAT_VERSION

_EXIT_CODE = 48
"""Place of the exit status among the fields of ``/proc/PID/stat`` that come after the state."""


def is_of_this_host(manifest: Mapping[str, Any]) -> bool:
    """Return whether the process of a rank's manifest is, or was, one of this host and boot."""
    return manifest.get("host") == os.uname().nodename and manifest.get("boot_id") == boot_id()


def wait_status(pid: int) -> int | None:
    """Return what ``wait`` will tell the parent of a process; None once it has been told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
        # The name of the program stands in brackets, and may hold anything.
        state, *fields = text.rpartition(")")[2].split()
        return int(fields[_EXIT_CODE]) if state == "Z" else None
    except (OSError, ValueError, IndexError):
        return None


def note_end(directory: Path, ended_ns: int, status: int | None) -> None:
    """Write down when and how a rank ended; without room on the disk, nothing."""
    noted = {"format_version": FORMAT_VERSION, "ended_ns": ended_ns, "wait_status": status}
    with suppress(OSError):
        write_json(directory / ENDED_NAME, noted)


def note_end_once(directory: Path, ended_ns: int, status: int | None) -> None:
    """Write the same down, unless somebody has done so."""
    if not os.path.lexists(directory / ENDED_NAME):
        note_end(directory, ended_ns, status)


_SETTLED_NS = 2_000_000_000
"""A change this long before a listing is in it; time stamps of files are that coarse at most (FAT)."""
_RELIST_NS = 5_000_000_000
"""Listed all the same after so long: not every file system stamps its directories."""


class Part(NamedTuple):
    """A part of a rank's recording."""

    rank: int
    number: int
    path: Path


class NewParts:
    """The parts in a run that were not known before.

    Args:
        run_path: The run directory.
    """

    def __init__(self, run_path: Path) -> None:
        self._run_path = run_path
        self._known: set[str] = set()
        self._listed_ns = -_RELIST_NS
        self._changed_ns = -1
        self._is_settled = False

    def take(self) -> list[Part]:
        """Return what is new, in order of rank and number.

        Raises:
            OSError: The run directory cannot be read.
        """
        time_ns, changed_ns = now_ns(), os.stat(self._run_path).st_mtime_ns
        is_same = self._is_settled and changed_ns == self._changed_ns
        if is_same and time_ns - self._listed_ns < _RELIST_NS:
            return []
        self._is_settled = unix_ns() - changed_ns > _SETTLED_NS
        self._listed_ns, self._changed_ns = time_ns, changed_ns
        return sorted(self._list())

    def _list(self) -> list[Part]:
        found = []
        with os.scandir(self._run_path) as entries:
            for entry in entries:
                if entry.name in self._known:
                    continue
                named = rank_of_name(entry.name)
                if named is not None and entry.is_dir():
                    self._known.add(entry.name)
                    found.append(Part(*named, self._run_path / entry.name))
        return found
