"""Parquet files under any name: pyarrow takes a path as text in UTF-8, which a file system does not promise."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa


def to_read(file: Path) -> pa.NativeFile:
    """Return a file opened for pyarrow to read.

    Raises:
        OSError: There is no such file, or no right to read it.
    """
    return pa.OSFile(os.fsencode(file), "rb")


def to_write(file: Path) -> pa.NativeFile:
    """Return a new file opened for pyarrow to write.

    Raises:
        OSError: It cannot be made.
    """
    return pa.OSFile(os.fsencode(file), "wb")
