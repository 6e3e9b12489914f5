"""One process at a time records a rank that no launcher has given an identity.

Processes that train side by side without a process group (trials of a search, workers that
share their weights) would all be rank 0 of 1. The first one is; a lock in the run directory,
which the system takes back when its process ends, tells the others.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from ..schema.manifest import FILE_MODE
from ..schema.reading import OwnDescriptor

_HELD: set[Claim] = set()


class Claim:
    """The lock of one rank, held until ``release`` or the end of this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = OwnDescriptor(descriptor)
        _HELD.add(self)

    def release(self) -> None:
        """Let another process have it."""
        _HELD.discard(self)
        if self._descriptor.is_open:
            # Also for copies: a child that was just forked may not have closed its own yet.
            with suppress(OSError):
                fcntl.flock(self._descriptor.number, fcntl.LOCK_UN)
        self._descriptor.close()

    def let_go(self) -> None:
        """Close it in a forked child, whose parent keeps it."""
        self._descriptor.close()


def claim(run_path: Path, rank: int) -> Claim | None:
    """Return the lock of a rank; None where another process has it.

    A file system without locks gives it to everybody: each then records a part of its own.

    Raises:
        OSError: The file of the lock cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(run_path / f".rank{rank:05d}.lock", flags, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass
    return Claim(descriptor)


def _let_go() -> None:
    """Close the locks of the parent of a forked process, which keeps them."""
    for held in _HELD:
        held.let_go()
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)
