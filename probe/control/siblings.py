"""Notes when other ranks of the same run on this host end, where no launcher of ours does.

A process that is killed cannot say so, and its launcher ends the others a moment later: then no
file tells who was first. The ranks find each other by their control sockets, and each watches the few that
follow it (pidfds), so that what a death costs does not grow with the ranks of a host. Who has seen an
end gives signs of life for a moment: it was not killed together with the one that ended.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..clock import now_ns
from ..job.lifetimes import is_of_this_host, note_end_once, wait_status
from ..safety.threads import start_deaf
from ..schema.errors import MeshscopeError
from ..schema.manifest import MANIFEST_NAME, rank_of_name, read_json
from ..schema.reading import OwnDescriptor
from .client import Endpoint, endpoint_at, endpoints_in

MOST_WATCHED = 4
"""Ranks that each one watches: an end is seen as long as one of these many is left."""
_LOOK_S, _LATER_LOOK_S = 0.1, 5.0
"""Time between two looks for sockets: until all of the host have theirs, and later."""
_FIRST_LOOKS = 200
"""So many looks at most are in short order."""
_SIGN_S, _SIGNS = 0.002, 100
"""How often, and how many times, signs of life follow an end."""
_STOP_S = 1.0
"""A thread that the kernel holds is left behind."""


class _End(NamedTuple):
    """A rank that has ended: when that was seen, and what ``wait`` will tell of it."""

    endpoint: Endpoint
    ended_ns: int
    status: int | None


class SiblingWatch:
    """Watches the ranks that follow one rank, until ``stop``.

    Args:
        run_path: The run directory.
        socket: The control socket of the rank that watches.
        alive: Called with the time while it outlives one that has ended.
        died: Called when one has ended, unless with status 0: the launcher may end this one a moment later.
        ranks: Ranks of this host; None if that is not known.
    """

    def __init__(
        self,
        run_path: Path,
        socket: Path,
        alive: Callable[[int], None],
        died: Callable[[], None],
        ranks: int | None = None,
    ) -> None:
        self._run_path = run_path
        self._own = endpoint_at(socket)
        self._sockets = socket.parent
        self._alive = alive
        self._died = died
        self._expected = MOST_WATCHED if ranks is None else min(MOST_WATCHED, ranks - 1)
        self._watched: dict[int, tuple[OwnDescriptor, Endpoint]] = {}
        self._ended: set[Endpoint] = set()
        self._poll = select.poll()
        self._wake = OwnDescriptor(-1)
        self._thread: threading.Thread | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin to watch; where the system has no pidfd, descriptor or thread, nothing is noted."""
        if not hasattr(os, "pidfd_open") or self._own is None:
            return
        thread = threading.Thread(target=self._watch, name="meshscope-siblings", daemon=True)
        with suppress(OSError, RuntimeError):
            self._wake = OwnDescriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            self._poll.register(self._wake.number, select.POLLIN)
            start_deaf(thread)
            self._thread = thread

    def stop(self) -> None:
        """End the thread; a look at the disk is not waited for."""
        self._stopped = True
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._wake.is_open:
            os.eventfd_write(self._wake.number, 1)
        thread.join(_STOP_S)
        # Closed here alone: closed by the thread, its number could be another file's by the write.
        if not thread.is_alive():
            self._wake.close()

    def _watch(self) -> None:
        looks = signs = 0
        due_ns = now_ns()
        while not self._stopped:
            if now_ns() >= due_ns:
                self._look()
                looks += 1
                is_early = looks < _FIRST_LOOKS and len(self._watched) < self._expected
                look_s = _LOOK_S if is_early else _LATER_LOOK_S
                due_ns = now_ns() + round(look_s * 1e9)
            wait_s = _SIGN_S if signs else max(due_ns - now_ns(), 0) / 1e9
            ready = self._poll.poll(wait_s * 1000)
            time_ns = now_ns()
            ended = [end for number, _ in ready if (end := self._end_of(number, time_ns))]
            signs = _SIGNS if ended else max(signs - 1, 0)
            if signs:
                self._alive(time_ns)
            # At once: a launcher may end this rank within a tenth of a second. The note can be another's.
            if any(end.status != 0 for end in ended):
                self._died()
            for end in ended:
                self._note(end)
        for descriptor, _ in self._watched.values():
            descriptor.close()

    def _look(self) -> None:
        """Watch the ranks that follow this one on the host, in the order of ranks."""
        own = self._own
        if own is None:
            return
        try:
            others = [one for one in endpoints_in(self._sockets) if one.pid != own.pid]
        except OSError:
            return
        others.sort(key=lambda one: (one <= own, one))
        known = {endpoint for _, endpoint in self._watched.values()} | self._ended
        for endpoint in others[:MOST_WATCHED]:
            if endpoint in known:
                continue
            try:
                number = os.pidfd_open(endpoint.pid)
            except OSError:  # It has ended, or is of another user or container.
                self._ended.add(endpoint)
                continue
            self._watched[number] = (OwnDescriptor(number), endpoint)
            self._poll.register(number, select.POLLIN)

    def _end_of(self, number: int, ended_ns: int) -> _End | None:
        """Return the end of a rank by the descriptor that is ready; None where it tells nothing."""
        self._poll.unregister(number)
        if number not in self._watched:
            return None
        descriptor, endpoint = self._watched.pop(number)
        is_ours, status = descriptor.is_open, wait_status(endpoint.pid)
        descriptor.close()
        if not is_ours:  # The program has closed it.
            return None
        self._ended.add(endpoint)
        return _End(endpoint, ended_ns, status)

    def _note(self, end: _End) -> None:
        part = self._part_of(end.endpoint)
        if part is not None:
            note_end_once(part, end.ended_ns, end.status)

    def _part_of(self, endpoint: Endpoint) -> Path | None:
        """Return the part of the recording that a process has written, None if there is none."""
        with suppress(OSError):
            for name in os.listdir(self._run_path):
                named = rank_of_name(name)
                if named is None or named[0] != endpoint.rank:
                    continue
                with suppress(MeshscopeError):
                    manifest = read_json(self._run_path / name / MANIFEST_NAME)
                    if manifest.get("pid") == endpoint.pid and is_of_this_host(manifest):
                        return self._run_path / name
        return None
