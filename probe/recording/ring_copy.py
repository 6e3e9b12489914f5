"""Which file systems can make a store wait, and how a ring that is in memory for that comes to its file.

A store into a mapped file waits while the kernel writes that page back: on a network
file system for its server, for as long as that takes. There the ring is private memory,
and the writer's thread, which may wait, copies what is new into the file. What a killed
process loses by it is what it recorded since the last copy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..schema.ring import HEADER_BYTES, RING_NAME, SLOT_BYTES, slot_dtype
from .ring import RingWriter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Change = tuple[int, bytes]
"""A place in the file and what goes there."""


class RingCopy:
    """Copies the slots of a ring that have changed since the copy before.

    Args:
        directory: The directory of the rank, with the ring's file in it.
        ring: The ring, not mapped from the file.
    """

    def __init__(self, directory: Path, ring: RingWriter) -> None:
        self._path = directory / RING_NAME
        self._image = ring.image
        self._copied: NDArray[np.int64] | None = None
        self._pending: NDArray[np.int64] | None = None

    def release(self) -> None:
        """Let go of the ring; nothing can be copied any more."""
        self._image = memoryview(bytes(HEADER_BYTES))

    def changes(self) -> list[Change]:
        """Return what the file lacks now."""
        import numpy as np

        slots = np.frombuffer(self._image[HEADER_BYTES:], dtype=slot_dtype())
        commits = slots["commit"].copy()
        if self._copied is None:
            self._copied = np.zeros_like(commits)
        self._pending = commits
        places = np.flatnonzero(commits != self._copied)
        runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1) if len(places) else []
        header = bytes(self._image[:HEADER_BYTES])
        return [(0, header), *(self._bytes_of(int(run[0]), len(run)) for run in runs)]

    def store(self, changes: list[Change]) -> None:
        """Write what ``changes`` returned last.

        Raises:
            OSError: The file system refuses; the next copy will try all of it again.
        """
        descriptor = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for place, content in changes:
                _write_all(descriptor, content, place)
        finally:
            # Network file systems may tell only here that they could not write.
            os.close(descriptor)
        self._copied = self._pending

    def _bytes_of(self, first: int, count: int) -> Change:
        place = HEADER_BYTES + first * SLOT_BYTES
        return place, bytes(self._image[place : place + count * SLOT_BYTES])


def _write_all(descriptor: int, content: bytes, place: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, place)
        rest, place = rest[written:], place + written


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
