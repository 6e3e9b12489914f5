"""Files in a process that is not ours: opened whatever lies in their places, or kept open for long.

A run directory may come from somebody else, so a name in it need not be a file:
a pipe would block its reader, a device has no end, and a symbolic link may lead to
a file that was never part of the run. The probe writes none of these.

A program that makes itself a daemon closes whatever is open (``os.closerange``), and the next file
that it opens gets a number that was ours. To write there, or to close it, would be to its harm.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 1 << 30
"""Larger files are not read. The probe closes a segment at 16 MiB unless told otherwise."""
_ANY_SIZE = 1 << 62
_CHUNK_BYTES = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_file(path: Path, *, most_bytes: int = MOST_BYTES) -> BinaryIO:
    """Open a regular file of bounded size.

    Raises:
        OSError: It is none, is too large, or cannot be opened.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise OSError(error.errno, "it is not a regular file", str(path)) from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if found.st_size > most_bytes:
        os.close(descriptor)
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB", str(path))
    return os.fdopen(descriptor, "rb")


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a regular file of any size, as hexadecimal digits.

    Raises:
        OSError: It is no regular file, or cannot be read.
    """
    import hashlib

    found = hashlib.sha256()
    with open_file(path, most_bytes=_ANY_SIZE) as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


class OwnDescriptor:
    """A descriptor that is used only while it is the file that it was in the beginning."""

    __slots__ = ("_file", "number")

    def __init__(self, number: int) -> None:
        """Take an open descriptor over."""
        self.number = number
        self._file = _file_of(number)

    @property
    def is_open(self) -> bool:
        """Tell whether the number still stands for that file."""
        return self._file is not None and _file_of(self.number) == self._file

    def close(self) -> None:
        """Close it, if it is still ours; a second call does nothing."""
        if self.is_open:
            os.close(self.number)
        self._file = None


def _file_of(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino
