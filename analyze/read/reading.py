"""How files are read: where large tables go, in how many processes, and who is told."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import msgspec

OnBytes = Callable[[int], None]
"""Told how many more bytes of the input were read."""


def ignore_bytes(_: int) -> None:
    """Tell nobody."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller decides about reading."""

    folder: Path | None = None
    """Gets the tables that are too large for memory; a temporary one if not given."""
    workers: int = 1
    """Most processes that read files at the same time."""
    on_bytes: OnBytes = ignore_bytes
    cycle: int | None = None
    """Which cycle of a profiler that ran several is read, from 1; None leaves the choice to the reader."""


class TemporaryFolder:
    """A folder that is removed when nothing refers to this object, or the program ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="meshscope-"))
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
