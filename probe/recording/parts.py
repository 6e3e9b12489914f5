"""Where a rank records that has recorded before, and how much of that is kept."""

from __future__ import annotations

import errno
from pathlib import Path

from ..schema.manifest import (
    create_directory,
    part_directories,
    rank_directory,
    require_own,
)
from ..schema.ring import RING_NAME
from .other_job import other_process

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
