"""The process that keeps what the slowest pages of a large run say; the server neither waits for it nor does its work.

It holds a lock on the folder of the analysis, so that another server, or this one after a restart, sees it too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.message import message

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_TRIES, _BETWEEN_S = 20, 0.05
"""Who only looks whether somebody holds the lock has it for an instant, too."""

Process = subprocess.Popen[str]


class StillMeasuredError(MeshscopeError):
    """What is asked for is being measured by a process of its own."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__(
            message("refused.still_measured"), remedy=message("advice.ask_in_some_seconds")
        )


@dataclass(slots=True)
class PageMaker:
    """Makes the pages of one analysis, once."""

    folder: Path
    """Of the analysis."""
    start: Callable[[], Process | None]
    """Starts the process; None if none can be had."""
    process: Process | None = None
    """The one that was started, if one was."""
    _beginning: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def is_making(self) -> bool:
        """Return whether a process still makes pages: ours, or that of another server."""
        if self.process is not None and self.process.poll() is None:
            return True
        return _is_locked(self.folder)

    def begin(self) -> bool:
        """Have the pages made; return False where that was begun before, or cannot be."""
        with self._beginning:
            if self.process is not None:
                return False
            self.process = self.start()
            return self.process is not None


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Be seen as the one who makes the pages of an analysis.

    Where the file system has no locks nobody sees it, and two may make the same.

    Raises:
        BlockingIOError: Somebody else does.
        OSError: The folder is gone.
    """
    descriptor = os.open(folder, _FOLDER_FLAGS)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    for is_last in (one == _TRIES - 1 for one in range(_TRIES)):
        if _try_lock(descriptor):
            return
        if not is_last:
            time.sleep(_BETWEEN_S)
    raise BlockingIOError(errno.EWOULDBLOCK, "another process makes the pages")


def _try_lock(descriptor: int) -> bool:
    """Return whether nobody else has the lock: as on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_locked(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, _FOLDER_FLAGS)
    except OSError:
        return False  # Nobody makes pages of an analysis that is gone.
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)
