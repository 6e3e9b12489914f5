"""Notes in a run directory that say where the sockets of its ranks are.

The directory of the sockets depends on variables of each process; the run
directory is what ranks and users have in common. A note is a hint only: the
socket that it names is used if its directory is private (``directory``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ..schema.errors import RunDirectoryError
from ..schema.manifest import create_directory, read_json, write_json

FOLDER = "control"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Pointer(NamedTuple):
    """Where the socket of a rank is."""

    rank: int
    pid: int
    host: str
    boot_id: str
    socket: Path


def boot_id() -> str:
    """Return the id of this boot of the machine, empty where there is none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def write_pointer(run_path: Path, rank: int, socket: Path) -> Path:
    """Note where the socket of this process is; return the note.

    Raises:
        OSError: The run directory cannot be written.
    """
    folder = run_path / FOLDER
    create_directory(folder)
    host = os.uname().nodename
    path = folder / f"rank{rank:05d}.{os.getpid()}.{host[:64]}.json"
    content = {"rank": rank, "pid": os.getpid(), "host": host, "boot_id": boot_id()}
    write_json(path, {**content, "socket": str(socket)})
    return path


def read_pointers(run_path: Path) -> list[Pointer]:
    """Return the notes of a run by rank; what is damaged or no note is left out."""
    return sorted(pointers_by_path(run_path).values())


def pointers_by_path(run_path: Path) -> dict[Path, Pointer]:
    """Return the notes of a run by their files; what is damaged or no note is left out."""
    try:
        paths = sorted((run_path / FOLDER).glob("rank*.json"))
    except OSError:
        return {}
    return {path: pointer for path in paths if (pointer := _read(path)) is not None}


def _read(path: Path) -> Pointer | None:
    try:
        note = read_json(path)
    except RunDirectoryError:
        return None
    rank, pid = note.get("rank"), note.get("pid")
    texts = [note.get(name) for name in ("host", "boot_id", "socket")]
    if type(rank) is not int or type(pid) is not int or rank < 0 or pid < 1:
        return None
    if not all(isinstance(text, str) for text in texts):
        return None
    host, boot, socket = (str(text) for text in texts)
    return Pointer(rank, pid, host, boot, Path(socket))
