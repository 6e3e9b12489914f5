"""Opens the files of a run directory for reading, whatever lies in their places.

A run directory may come from somebody else, so a name in it need not be a file:
a pipe would block its reader, a device has no end, and a symbolic link may lead to
a file that was never part of the run. The probe writes none of these.
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
