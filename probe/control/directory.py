"""The private directory of a run's sockets: ``<base>/meshscope/<run name>``.

The base is ``$XDG_RUNTIME_DIR``, else ``<temporary directory>/meshscope-<uid>``, the first of
them that will do.
A socket file does not protect itself: whoever may search its directory can
connect to it, and whoever may write there can put his own in its place. So the
directories must be ours with mode 0700, and nobody but root and us may be able
to replace any directory on the way to them; a symbolic link on the way is refused.

That directory depends on variables of each process; the run directory is what
ranks and users have in common, and notes in it say where the sockets are. A note
is a hint only: the socket that it names is used if its directory is private.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..schema.errors import ConfigError, RunDirectoryError
from ..schema.manifest import create_directory, read_json, write_json
from ..schema.message import message

MOST_PATH_BYTES = 107
"""Longest path of a Unix socket, without the zero byte at its end."""

_FOLDER = "meshscope"
_USUAL = ("/tmp", "/var/tmp")
_NAME_CHARACTERS = 40
_SOCKET_NAME_BYTES = 40
"""Room that is kept for the name of a socket in its directory."""


def run_name(run_path: Path) -> str:
    """Return the name of a run's directory of sockets.

    Runs of equal names in different folders get different ones; a long name is cut, and odd
    characters become hyphens.
    """
    run_id = re.sub(r"[^A-Za-z0-9._-]", "-", run_path.name)
    check = hashlib.sha256(os.fsencode(os.path.realpath(run_path))).hexdigest()[:8]
    return f"{run_id[:_NAME_CHARACTERS]}-{check}"


def socket_name(rank: int, pid: int) -> str:
    """Return the name of a rank's socket in the directory of its run."""
    return f"rank{rank}.{pid}.sock"


def base_directories(environment: Mapping[str, str]) -> list[Path]:
    """Return the directories that may hold those of runs, the preferred one first."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    found = [Path(runtime) / _FOLDER] if runtime.startswith("/") else []
    # Not by ``tempfile``, which would remember what it has found: the program that we are in may
    # name another place before it asks for the first time.
    given = (environment.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    temporary = (*map(os.path.abspath, filter(None, given)), *_USUAL)
    found += (Path(directory) / f"{_FOLDER}-{os.geteuid()}" for directory in temporary)
    return list(dict.fromkeys(found))


def make_directory(
    name: str, environment: Mapping[str, str], name_bytes: int = _SOCKET_NAME_BYTES
) -> Path:
    """Return the directory of sockets of a run, which is made if it is not there.

    Args:
        name: From ``run_name``, or another name that is safe for a directory.
        environment: Variables of this process.
        name_bytes: Room that is kept for the name of a socket in it.

    Raises:
        ConfigError: None of the places is private; the message says why not.
    """
    reasons = []
    for base in base_directories(environment):
        path = base / name
        try:
            if len(os.fsencode(path)) + 1 + name_bytes > MOST_PATH_BYTES:
                raise ConfigError(message("refused.socket_path_too_long"), where=str(path))
            _check_way(base.parent)
            for directory in (base, path):
                _make(directory)
                check_private(directory)
            return path
        except ConfigError as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{path}: {error.strerror}")
    raise ConfigError(
        message("refused.no_private_directory", reasons=reasons),
        remedy=message("advice.private_directory"),
    )


def _make(directory: Path) -> None:
    """Make a directory for us alone if it is not there, whatever the umask takes away."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return
    directory.chmod(0o700)


def existing_directories(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the directories of all runs with sockets of this user on this host."""
    for base in base_directories(environment):
        try:
            _check_way(base.parent)
            check_private(base)
            children = sorted(base.iterdir())
        except (ConfigError, OSError):
            continue
        yield from (child for child in children if _is_private(child))


def check_trusted(directory: Path) -> None:
    """Accept a directory of sockets that somebody names, if it is private all the way.

    Raises:
        ConfigError: It is not.
    """
    _check_way(directory.parent)
    check_private(directory)


def check_private(directory: Path) -> None:
    """Accept a directory that is ours and closed to everybody else.

    Raises:
        ConfigError: It is missing, a link, of another user, or open to others.
    """
    found = _look(directory)
    if found.st_uid != os.geteuid():
        raise ConfigError(message("refused.other_owner", user=found.st_uid), where=str(directory))
    if stat.S_IMODE(found.st_mode) != 0o700:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(message("refused.open_mode", mode=f"{mode:o}"), where=str(directory))


def _is_private(directory: Path) -> bool:
    try:
        check_private(directory)
    except ConfigError:
        return False
    return True


def _check_way(directory: Path) -> None:
    """Accept a directory if only root and we can replace what lies on the way to it.

    A directory that others may write to is acceptable with the sticky bit, under
    which they cannot replace what is ours.
    """
    if not directory.is_absolute() or ".." in directory.parts:
        raise ConfigError(message("refused.no_absolute_path"), where=str(directory))
    for step in (*reversed(directory.parents), directory):
        found = _look(step)
        if found.st_uid not in (0, os.geteuid()):
            raise ConfigError(message("refused.other_owner", user=found.st_uid), where=str(step))
        open_to_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if open_to_others and not found.st_mode & stat.S_ISVTX:
            raise ConfigError(message("refused.changed_by_others"), where=str(step))


def _look(path: Path) -> os.stat_result:
    try:
        found = path.lstat()
    except OSError as error:
        raise ConfigError(
            message("refused.not_looked_at", reason=error.strerror), where=str(path)
        ) from error
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(message("refused.symbolic_link"), where=str(path))
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(message("refused.no_directory"), where=str(path))
    return found


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
