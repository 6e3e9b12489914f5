"""The child in which a reader runs that may hang: one JSON line out for each byte in.

``python -m meshscope.probe.agent.reader_process devices|links FD [--skip NAME …]``

Before each call that may hang its name is stored in a page shared with the agent, so
that the agent knows what to leave out after it has given up on this process. The end of
standard input is the end of the process, also when a thread hangs in the driver.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .devices import DeviceReader
from .links import SYSFS, LinkReader
from .readings import Reader

PROGRESS_BYTES = 256
_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG`` of prctl(2): an agent that is killed leaves nothing behind."""


class Progress:
    """The name of the call at hand, in memory that the agent shares."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, PROGRESS_BYTES)

    def enter(self, name: str) -> None:
        """Store a name; the rest of the page becomes spaces."""
        self._page[:] = name.encode(errors="replace")[:PROGRESS_BYTES].ljust(PROGRESS_BYTES)

    def current(self) -> str:
        """Return the name that was stored last; empty if there is none."""
        return self._page[:].decode(errors="replace").strip("\0 ")


def serve(reader: Reader, enter: Callable[[str], None]) -> None:
    """Answer each byte on standard input with a reading until it ends."""
    while asked := os.read(0, 4096):
        for _ in asked:
            line = reader.read().to_json().encode() + b"\n"
            enter("")
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(1, rest) :]


def main(arguments: Sequence[str]) -> None:
    """Run one reader."""
    kind, descriptor, root, *skipped = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    progress = Progress(int(descriptor))
    skip = frozenset(skipped)
    reader: Reader
    if kind == "devices":
        reader = DeviceReader(enter=progress.enter, skip=skip)
    else:
        reader = LinkReader(Path(root or SYSFS), enter=progress.enter, skip=skip)
    try:
        serve(reader, progress.enter)
    finally:
        # Not by the usual way, which would wait for a thread in the driver.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
