"""Notes when the rank processes of this host end, for ``meshscope run``.

A process that dies at once, of a signal or a crash, cannot say so itself, and its
parent is the job's launcher. A pidfd becomes readable when its process ends, for
anybody, so a thread waits for those of all ranks that record themselves here and
notes the moment in the rank's directory. Until its parent looks at it, the system says
how it ended as well. Both tell the rank that died from those that were ended because of it.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..clock import now_ns
from ..job.lifetimes import NewParts, Part, is_of_this_host, note_end, wait_status
from ..schema.errors import RunDirectoryError
from ..schema.manifest import MANIFEST_NAME, read_json

_LOOK_S = 0.25
"""Least time between two looks for new ranks."""
_REST = 100
"""Time between two looks, in lengths of a look: it takes at most one hundredth of a core."""
_STOP_S = 5.0
"""Longest time that the end of a job waits for a disk that hangs."""


class RankWatch:
    """Watches the ranks of one run on this host until ``stop``.

    Args:
        run_path: The run directory; its ranks may come later.
        before: Parts of ranks that others have started: their processes may have gone long
            ago, and others may have got their ids.
    """

    def __init__(self, run_path: Path, before: Iterable[Path] = ()) -> None:
        self._new = NewParts(run_path)
        self._before = frozenset(before)
        self._waiting: set[Part] = set()
        self._open: dict[int, tuple[Path, int]] = {}
        self._poll = select.poll()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meshscope-watch", daemon=True)

    @property
    def watched(self) -> int:
        """Return how many processes are watched now."""
        return len(self._open)

    def __enter__(self) -> RankWatch:
        """Start to watch."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def start(self) -> None:
        """Begin to watch; where the system has no pidfd or no thread, nothing is noted."""
        if hasattr(os, "pidfd_open"):
            with suppress(RuntimeError):
                self._thread.start()

    def stop(self) -> None:
        """Note the ranks that have ended by now, and let go of the others."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        if self._thread.is_alive():
            return  # It ends with this process.
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def _watch(self) -> None:
        look_ns = now_ns()
        while not self._stopped.is_set():
            began_ns = now_ns()
            if began_ns >= look_ns:
                self._add_new()
                look_ns = now_ns() + _REST * (now_ns() - began_ns)
            self._note_ended(_LOOK_S)
        self._note_ended(0.0)

    def _add_new(self) -> None:
        try:
            new = self._new.take()
        except OSError:
            return
        self._waiting.update(part for part in new if part.path not in self._before)
        self._waiting = {part for part in self._waiting if not self._add(part.path)}

    def _add(self, directory: Path) -> bool:
        """Watch a rank of this host; one whose process is gone already is not noted.

        Returns:
            False where its manifest is still being written.
        """
        try:
            manifest = read_json(directory / MANIFEST_NAME)
        except RunDirectoryError:
            return False
        if is_of_this_host(manifest):
            try:
                pid = int(manifest["pid"])
                descriptor = os.pidfd_open(pid)
            except (OSError, KeyError, TypeError, ValueError):
                return True
            self._open[descriptor] = directory, pid
            self._poll.register(descriptor, select.POLLIN)
        return True

    def _note_ended(self, wait_s: float) -> None:
        if not self._open:
            self._stopped.wait(wait_s)
            return
        ready = self._poll.poll(wait_s * 1000)
        ended_ns = now_ns()
        statuses = {descriptor: wait_status(self._open[descriptor][1]) for descriptor, _ in ready}
        for descriptor, status in statuses.items():
            self._poll.unregister(descriptor)
            os.close(descriptor)
            note_end(self._open.pop(descriptor)[0], ended_ns, status)
