"""What kind of file system a directory is on, as far as storing into a mapping goes."""

from __future__ import annotations

import os
from pathlib import Path

UNKNOWN = "unknown"
_MOUNTS = Path("/proc/self/mountinfo")
_STORES_AT_ONCE = frozenset({"ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs"})
"""Local ones that write to the blocks that a file was given. On others a store may wait for a
server that is writing the page back, or, where each write takes new blocks (btrfs, zfs), end
the process with SIGBUS on a full disk."""


def file_system_of(directory: Path) -> str:
    """Return the type of the file system that holds a directory, as the kernel names it."""
    try:
        place = os.path.realpath(directory)
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return UNKNOWN
    best, kind = -1, UNKNOWN
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < _MOUNT_POINT + 1:
            continue
        mount = _unescaped(fields[_MOUNT_POINT])
        # Of two on one mount point the later one covers the earlier.
        if len(mount) >= best and _holds(mount, place):
            best, kind = len(mount), after.split(" ")[0]
    return kind


def slow_file_system_of(directory: Path) -> str | None:
    """Return the type of a file system on which a store into a mapped file may wait or fail.

    None where it does neither. What is not known may.
    """
    kind = file_system_of(directory)
    return None if kind in _STORES_AT_ONCE else kind


_MOUNT_POINT = 4


def _unescaped(field: str) -> str:
    """Return a path of which the kernel wrote blanks and backslashes as octal numbers."""
    head, *parts = field.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts)


def _holds(mount: str, place: str) -> bool:
    return mount == "/" or place == mount or place.startswith(f"{mount}/")
