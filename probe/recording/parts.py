"""Where a rank records that has recorded before, and how much of that is kept.

Two jobs that were given one name for their runs would be mixed: each rank of the second would look
like a restart of the first. So a rank whose newest part belongs to a process that is alive on this
host is not recorded. What the same launcher has started, or says that it has started again, is a
restart, though the process before it has not ended yet. A launcher that bears a rank itself is no
other job. Ranks of other hosts cannot be looked at and are let pass.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..clock import unix_ns
from ..schema.errors import RunDirectoryError
from ..schema.manifest import (
    MANIFEST_NAME,
    create_directory,
    part_directories,
    rank_directory,
    read_json,
    require_own,
)
from ..schema.ring import RING_NAME
from .rank_manifest import boot_id

_PARENT = 1
_START_TICKS = 19
"""Positions in ``/proc/PID/stat`` after the name of the program and its state."""
_SLACK_NS = 2_000_000_000
"""The time of the boot is known to a second, and the wall clock may be set meanwhile."""


def other_process(part: Path) -> int | None:
    """Return the process of another job that records in a part of a rank now, None if none does.

    Args:
        part: Directory of the rank's newest part.
    """
    try:
        manifest = read_json(part / MANIFEST_NAME)
    except RunDirectoryError:
        return None
    here = (os.uname().nodename, boot_id())
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0"):
        return None
    if here[1] is None or (manifest.get("host"), manifest.get("boot_id")) != here:
        return None
    pid, started_ns = manifest.get("pid"), manifest.get("started_unix_ns")
    if manifest.get("closed_unix_ns") is not None or type(pid) is not int or pid == os.getpid():
        return None
    stat = _stat(pid)
    if stat is None or int(stat[_PARENT]) in (os.getppid(), os.getpid()) or pid in _ancestors():
        return None
    if type(started_ns) is int and _started_unix_ns(stat) > started_ns + _SLACK_NS:
        return None  # the number was given to another program since
    return pid


def _stat(pid: int) -> list[str] | None:
    """Return what the system tells of a process from its state on; None where it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > _START_TICKS and fields[0] not in ("Z", "X") else None


def _ancestors() -> set[int]:
    """Return the processes that this one descends from."""
    found: set[int] = set()
    pid = os.getppid()
    while pid > 1 and pid not in found:
        found.add(pid)
        stat = _stat(pid)
        pid = 0 if stat is None else int(stat[_PARENT])
    return found


def _started_unix_ns(stat: list[str]) -> int:
    """Return when a process began, by the wall clock of now."""
    up_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    began_s = int(stat[_START_TICKS]) / os.sysconf("SC_CLK_TCK")
    return unix_ns() - round((up_s - began_s) * 1e9)


MOST_PARTS = 32
"""Parts of a rank that are kept."""


def new_part(run_path: Path, rank: int, most_bytes: int) -> tuple[Path, int]:
    """Make the directory of a rank's next part and make room for it.

    Several processes that begin at the same moment may get the same one: it belongs to the one that makes its
    ring. Of the parts before, the first stays, because it tells how the run began, and
    as many of the newest as fit; the others are deleted.

    Args:
        run_path: The run directory, made if it does not exist.
        rank: Global rank.
        most_bytes: Bound of the parts before, together.

    Returns:
        The directory, and how many parts were deleted.

    Raises:
        OSError: It cannot be made, the rank's last one is a link or of another user, or another
            job records in it.
    """
    create_directory(run_path)
    before = part_directories(run_path).get(rank, {})
    newest = max(before, default=0)
    if newest:
        require_own(before[newest])
        _require_one_job(before[newest])
    if newest and not (before[newest] / RING_NAME).exists():
        return before[newest], 0
    directory = rank_directory(run_path, rank, newest + 1)
    create_directory(directory)
    return directory, _delete_oldest(list(before.values()), most_bytes)


def _require_one_job(newest: Path) -> None:
    pid = other_process(newest)
    if pid is not None:
        raise OSError(
            errno.EBUSY,
            f"process {pid} of another job records this rank; give each job a run of its own (--run-id)",
            str(newest),
        )


def _delete_oldest(parts: list[Path], most_bytes: int) -> int:
    import shutil  # Here, as few ranks come so far: it brings three compressors.

    sizes = {path: _size_bytes(path) for path in parts}
    deleted = 0
    for path in parts[1:]:
        if len(sizes) < MOST_PARTS and sum(sizes.values()) <= most_bytes:
            break
        shutil.rmtree(path, ignore_errors=True)
        del sizes[path]
        deleted += 1
    return deleted


def _size_bytes(directory: Path) -> int:
    try:
        return sum(file.lstat().st_size for file in directory.iterdir())
    except OSError:
        return 0
