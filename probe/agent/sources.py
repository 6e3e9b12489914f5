"""How the agent asks its readers: without ever waiting for one.

``ask`` starts a reading and ``take`` returns what has come. A reader that may hang is in
a child process; when that does not answer in time it is killed, the call that it was in
is left out for a while, and another child takes over. A child that not even SIGKILL ends
(the driver holds it in the kernel) is left alone, and after a few of them no more are
started until one has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from .reader_process import PROGRESS_BYTES, Progress
from .readings import MOST_BYTES, Reader, Reading, ReadingError, reading_from_json

_NS = 1_000_000_000
_LEAVE_OUT_NS = 600 * _NS
"""A call that hung is tried again after this time, doubled each time it hangs again."""
_LONGEST_NS = 24 * 3600 * _NS
_START_TIMEOUTS = 4
"""The first reading also loads Python and the driver: it gets so many times as long."""
_FIRST_PAUSE_NS = 1 * _NS
_LONGEST_PAUSE_NS = 300 * _NS
_MOST_STUCK = 3
"""A child in a driver call cannot be killed. Three prove that the driver hangs; more only take
memory."""

Count = Callable[[str, int], None]
"""Adds to a counter of the host manifest."""


class Source(Protocol):
    """A reader as the agent sees it."""

    name: str

    def ask(self, time_ns: int) -> None:
        """Start a reading, unless one is under way."""

    def take(self, time_ns: int) -> list[Reading]:
        """Return the readings that have come since."""

    def descriptor(self) -> int | None:
        """Return what becomes readable when a reading has come; None where none is awaited."""

    def close(self) -> None:
        """End it."""


class DirectSource:
    """A reader that does not hang, read where the agent is."""

    def __init__(self, reader: Reader) -> None:
        self.name = reader.name
        self._reader = reader
        self._waiting: list[Reading] = []

    def ask(self, time_ns: int) -> None:
        """Read at once.

        Raises:
            ReplayEnded: The reader is a recording at its end.
        """
        self._waiting.append(self._reader.read())

    def take(self, time_ns: int) -> list[Reading]:
        """Return what was read since."""
        found, self._waiting = self._waiting, []
        return found

    def descriptor(self) -> int | None:
        """Return None: nothing has to be waited for."""
        return None

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class ChildSource:
    """A reader in a child process."""

    def __init__(
        self, name: str, count: Count, *, root: Path | None = None, timeout_ns: int = 5 * _NS
    ) -> None:
        """Prepare; the child is started when it is first asked.

        Args:
            name: ``devices`` or ``links``.
            count: Told of hangs, deaths and restarts.
            root: Root of sysfs for ``links``.
            timeout_ns: Time after which a reading is given up.
        """
        self.name = name
        self._count = count
        self._root = root
        self._timeout_ns = timeout_ns
        self._child: subprocess.Popen[bytes] | None = None
        self._progress: Progress | None = None
        self._answer = b""
        self._has_answered = False
        self._deadline_ns: int | None = None
        self._not_before_ns = 0
        self._pause_ns = _FIRST_PAUSE_NS
        self._left_out: dict[str, tuple[int, int]] = {}
        self._skipping: Sequence[str] = ()
        self._stuck: list[subprocess.Popen[bytes]] = []

    def ask(self, time_ns: int) -> None:
        """Ask the child for a reading; start one where there is none."""
        if self._deadline_ns is not None or time_ns < self._not_before_ns:
            return
        if self._child is not None and self._child.poll() is not None:
            self._failed(time_ns, "died")
            return
        if self._child is not None and self._is_over(time_ns):
            self._end_child()
        try:
            if self._child is None and not self._start(time_ns):
                return
            assert self._child is not None
            assert self._child.stdin is not None
            os.write(self._child.stdin.fileno(), b"r")
        except OSError as error:
            self._failed(time_ns, f"cannot be asked: {error.strerror}")
            return
        waits = self._timeout_ns if self._has_answered else _START_TIMEOUTS * self._timeout_ns
        self._deadline_ns = time_ns + waits

    def take(self, time_ns: int) -> list[Reading]:
        """Return the reading if it has come; give the child up if its time is over."""
        if self._child is None or self._deadline_ns is None:
            return []
        assert self._child.stdout is not None
        try:
            while part := os.read(self._child.stdout.fileno(), 1 << 16):
                self._answer += part
                if part.endswith(b"\n") or len(self._answer) > MOST_BYTES:
                    return self._answered(time_ns)
            self._failed(time_ns, "died")
        except BlockingIOError:
            if time_ns >= self._deadline_ns:
                self._failed(time_ns, "hung")
        return []

    def descriptor(self) -> int | None:
        """Return the pipe that the answer comes through while one is awaited."""
        if self._child is None or self._child.stdout is None or self._deadline_ns is None:
            return None
        return self._child.stdout.fileno()

    def close(self) -> None:
        """End the child, by force."""
        self._end_child()

    def _answered(self, time_ns: int) -> list[Reading]:
        line, self._answer = self._answer, b""
        try:
            reading = reading_from_json(line)
        except ReadingError as error:
            self._failed(time_ns, f"gave what {error}")
            return []
        self._deadline_ns = None
        self._has_answered = True
        self._pause_ns = _FIRST_PAUSE_NS
        if "unavailable" in reading.facts:
            self._end_child()
            self._not_before_ns = time_ns + _LONGEST_PAUSE_NS
        return [reading]

    def _start(self, time_ns: int) -> bool:
        self._stuck = [child for child in self._stuck if child.poll() is None]
        if len(self._stuck) >= _MOST_STUCK:
            self._not_before_ns = time_ns + _LONGEST_PAUSE_NS
            return False
        self._skipping = self._left_out_now(time_ns)
        self._has_answered = False
        page = os.memfd_create("meshscope-progress", os.MFD_CLOEXEC)
        try:
            os.ftruncate(page, PROGRESS_BYTES)
            self._progress = Progress(page)
            self._child = subprocess.Popen(
                [*_COMMAND, self.name, str(page), str(self._root or ""), *self._skipping],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[page],
            )
        finally:
            os.close(page)
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        self._count(f"{self.name}_reader_starts", 1)
        return True

    def _left_out_now(self, time_ns: int) -> Sequence[str]:
        return sorted(name for name, (until_ns, _) in self._left_out.items() if time_ns < until_ns)

    def _is_over(self, time_ns: int) -> bool:
        """Tell whether a call that the child leaves out is to be tried again."""
        return any(time_ns >= self._left_out[name][0] for name in self._skipping)

    def _failed(self, time_ns: int, how: str) -> None:
        """Give the child up; the call that it was in is left out for a while."""
        at = self._progress.current() if self._progress is not None else ""
        self._count(f"{self.name} reader {how}" + (f" in {at}" if at else ""), 1)
        self._count(f"{self.name}_reader_errors", 1)
        if at:
            _, last_ns = self._left_out.get(at, (0, _LEAVE_OUT_NS // 2))
            length_ns = min(2 * last_ns, _LONGEST_NS)
            self._left_out[at] = (time_ns + length_ns, length_ns)
        self._end_child()
        self._not_before_ns = time_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        self._answer, self._deadline_ns = b"", None
        if child is None:
            return
        with suppress(OSError):
            child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            child.wait(_SHORTLY_S)
        except subprocess.TimeoutExpired:
            self._stuck.append(child)


_COMMAND = (sys.executable, "-P", "-m", "meshscope.probe.agent.reader_process")
_SHORTLY_S = 0.2
"""Time that a killed process is given to be gone."""
