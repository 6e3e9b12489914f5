"""Names and JSON files of a run directory: ids, versions, atomic replacement.

Light on purpose: a training process imports this, so there is no numpy and no
pyarrow here.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError, FormatVersionError, RunDirectoryError
from .message import message
from .reading import open_file
from .tables import FORMAT_VERSION, READABLE_VERSIONS

MANIFEST_NAME = "manifest.json"
TRAINING_STEP_KEY = "training_step"
"""Annotation of a rank: a ``step`` of its process, and its ``number`` in the training."""
RECORDING_KEY = "recording"
"""Annotation of a rank: the stretches of steps at one level, oldest first."""
DEVICE_CLOCK_KEY = "device_clock"
"""Annotation of a rank: where the device's clock may lie on the host's, ``least_ns`` to ``most_ns``."""
STANDSTILL_KEY = "standstill"
"""Annotation of a rank: when a step had lasted for long (``time_ns``), and what was the same there at two
looks: how many ``collectives`` it had issued, by group, where they were not recorded, and the ``stack`` of the
training thread, the innermost first; ``goes_on`` if it moved within that."""
LAST_OPERATIONS_KEY = "last_operations"
"""Annotation of a rank: when (``time_ns``) it noted its newest collectives because they were not recorded: the
``entries`` of PyTorch's own recorder, with the id of the group in place of its name, and how many ``collectives``
each group had issued; the ``error`` that ended the program, if one did, and its ``place``: function, file, line."""
LAST_STACK_KEY = "last_stack"
"""Annotation of a rank: when (``time_ns``) and at which ``StackMoment`` (``moment``) it noted the ``stack`` of the
training thread because the job was ending: function, file and line, the innermost first."""
CALL_PLACES_KEY = "collectives.places"
"""Annotation of a rank: where it issued collectives it had not issued before: lists of group index, position of the
kind, element type, bytes, function, file and line."""
MESSAGE_PLACES_KEY = "messages.places"
"""The same for sends and receives: lists of group index, position of the direction, global rank of the peer (-1: any),
element type, bytes, function, file and line."""
JOB_KEY = "job"
"""Annotation of rank 0: the facts about the job in the attempt that its part is of."""
OBSERVED_KEY = "observed"
"""Annotation of every rank but 0, whose facts about the job have it: what it saw of what ran of the model."""
DEEP_STALLS_KEY = "deep_traces.stalls"
"""Annotation of a rank: the request and ns of each of its newest deep traces whose start and end held the training
thread up."""
LED_ANEW_KEY = "steps.led_anew"
"""Annotation of a rank: steps that end with an optimizer that took the place of another."""
OTHER_UPDATES_KEY = "steps.other_updates"
"""Annotation of a rank: a number of steps, and how often another optimizer than the one that ends them was updated in
them, where the two differ."""
FATAL_STACK_NAME = "fatal_stack.txt"
"""In a rank's directory: the stacks of its threads where a signal such as SIGSEGV ended it; else empty."""
ENDED_NAME = "ended.json"
"""In a rank's directory: when its process ended, as ``meshscope run`` saw it."""
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_BYTES = 64 << 20
"""A larger JSON file of a run is not read."""
_RANK_DIRECTORY = re.compile(r"rank(\d{5,9})(?:\.([2-9]|[1-9]\d{1,5}))?")
_HOST_DIRECTORY = re.compile(r"host-([A-Za-z0-9._-]{1,200})")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NEW_FILE_FLAGS = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check_run_id(run_id: str) -> str:
    """Return the id of a run if it is safe to use as a directory name.

    Raises:
        ConfigError: It is empty, too long, or has characters other than
            letters, digits, dot, underscore and hyphen.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(
            message("refused.no_run_id", run_id=run_id),
            where="run id",
            remedy=message("advice.run_id"),
        )
    return run_id


def rank_directory(run_path: Path, rank: int, part: int = 1) -> Path:
    """Return the directory of a part of a rank's recording, which need not exist.

    A rank that records again, in a new process or after it was detached, begins a
    new part: ``rank00000``, ``rank00000.2``, ``rank00000.3`` ...
    """
    return run_path / (f"rank{rank:05d}" if part == 1 else f"rank{rank:05d}.{part}")


def rank_of_name(name: str) -> tuple[int, int] | None:
    """Return rank and part that a directory of a run has by its name, None for another one."""
    match = _RANK_DIRECTORY.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or 1))


def newest_part(run_path: Path, rank: int) -> Path | None:
    """Return the directory in which a rank records now or has recorded last, None without any."""
    parts = part_directories(run_path).get(rank)
    return None if not parts else parts[max(parts)]


def part_directories(run_path: Path) -> dict[int, dict[int, Path]]:
    """Return the existing parts of each rank by number, in order of rank and number."""
    found: dict[int, dict[int, Path]] = {}
    with os.scandir(run_path) as entries:
        for entry in entries:
            named = rank_of_name(entry.name)
            if named is not None and entry.is_dir():
                found.setdefault(named[0], {})[named[1]] = run_path / entry.name
    return {rank: dict(sorted(parts.items())) for rank, parts in sorted(found.items())}


def rank_directories(run_path: Path) -> dict[int, Path]:
    """Return the directory of the newest part of each rank, in rank order."""
    return {rank: parts[max(parts)] for rank, parts in part_directories(run_path).items()}


def host_directory(run_path: Path, host: str) -> Path:
    """Return the directory of a host, which need not exist; odd characters become hyphens."""
    return run_path / f"host-{re.sub(r'[^A-Za-z0-9._-]', '-', host)[:200] or 'unnamed'}"


def host_directories(run_path: Path) -> dict[str, Path]:
    """Return the existing host directories by the name in them, sorted."""
    found = {}
    for path in run_path.iterdir():
        match = _HOST_DIRECTORY.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink():
            found[match[1]] = path
    return dict(sorted(found.items()))


def check_format_version(found: object, where: str) -> None:
    """Accept the format versions that this program reads.

    Raises:
        FormatVersionError: It is another one, or none.
    """
    if found not in READABLE_VERSIONS or isinstance(found, bool):
        older = ", ".join(map(str, READABLE_VERSIONS[:-1]))
        raise FormatVersionError(
            message("refused.format_version", found=found, known=FORMAT_VERSION, older=older),
            where=where,
            remedy=message("advice.release_that_wrote_it"),
        )


def create_file(path: Path, *, writable: int = os.O_WRONLY) -> int:
    """Create a private file that does not exist yet; return its descriptor.

    Neither an existing file nor a symbolic link planted at its place is used.

    Raises:
        OSError: It exists, or cannot be created.
    """
    return os.open(path, _NEW_FILE_FLAGS | writable, FILE_MODE)


def create_directory(path: Path) -> None:
    """Create a private directory and, with default modes, what leads to it.

    Raises:
        OSError: It cannot be created, its place is taken by a file or a symbolic link, or it
            belongs to another user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:
        require_own(path)


def require_own(path: Path) -> None:
    """Accept a directory into which this user may safely write.

    Whoever owns a directory can replace what lies in it, so a link that another user has
    planted, or a directory of theirs, would have us write where they want.

    Raises:
        OSError: It is missing, a symbolic link, no directory, or belongs to another user.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "is a symbolic link, which is not followed", str(path))
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is not a directory", str(path))
    if found.st_uid != os.geteuid() and _user_of_new_files(path) != found.st_uid:
        raise PermissionError(errno.EACCES, f"belongs to user {found.st_uid}", str(path))


def _user_of_new_files(directory: Path) -> int:
    """Return the user that the file system gives our new files: it may squash root to another.

    Raises:
        OSError: None can be made there.
    """
    path = directory / f".owner.{os.urandom(8).hex()}"
    descriptor = create_file(path)
    try:
        return os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step: a reader sees the old or the new one.

    Raises:
        OSError: It cannot be written; the old one stays.
        TypeError: A value has no JSON form.
        ValueError: A number is not finite.
    """
    text = json.dumps(value, indent=1, allow_nan=False)
    # Random, because hosts that share a file system may have equal process ids.
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = create_file(draft)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Half surrogates, which no text file can hold, become question marks.

    Raises:
        RunDirectoryError: It is missing, no regular file, unreadable, torn, or no object.
    """
    try:
        with open_file(path, most_bytes=_MOST_BYTES) as file:
            content = file.read()
        value = json.loads(content)
        if _SURROGATE.search(content):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except OSError as error:
        raise RunDirectoryError(
            message("refused.unreadable", error=error.strerror), where=str(path)
        ) from error
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(
            message("refused.invalid_json", error=error), where=str(path)
        ) from error
    if not isinstance(value, dict):
        raise RunDirectoryError(message("refused.no_json_object"), where=str(path))
    return value
