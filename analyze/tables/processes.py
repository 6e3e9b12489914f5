"""Work in several processes, of which one may be killed without loss of the others' work.

Processes are started by a server that has no threads of its own (``forkserver``), never
by a fork of this one, which may have some. Each has one task at a time, so it is known
which one was lost with it. There are no locks: a process that is killed would hold one
for ever.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar, cast

import msgspec

from . import interrupts

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_PRELOADED = ["__main__", interrupts.__name__, "meshscope.analyze.read.kineto.rank"]
"""Imported once, in the server, instead of in each process."""
_POLL_S = 0.1
"""How late a worker that was killed is noticed."""


class WorkerDied(msgspec.Struct, frozen=True):
    """The process that had a task ended without a result: it was killed, or ran out of memory."""


class _Raised(msgspec.Struct, frozen=True):
    """What the function raised, in parts: not every error can be sent between processes."""

    text: str
    errno: int | None
    filename: str | None

    def error(self) -> Exception:
        """Return it as the owner raises it."""
        if self.errno is not None:
            return OSError(self.errno, self.text, self.filename)
        return RuntimeError(self.text)


class _Worker(msgspec.Struct):
    process: BaseProcess
    pipe: Connection
    task: int | None = None
    """The task that it has."""


class _Place:
    """Where this process reports to; nowhere in a process that is no worker."""

    counts: Any = None
    """Bytes that were read so far, for each task; only the process that has the task writes."""
    task = 0


def map_in_processes(
    function: Callable[[_Task], _Result],
    tasks: Sequence[_Task],
    *,
    workers: int,
    on_bytes: Callable[[int], None],
) -> list[_Result | WorkerDied]:
    """Return the results of tasks in their order.

    A task whose process dies is tried once more at the end, alone: when memory is short,
    the system may have killed any of them.

    Args:
        function: Importable by name; calls ``report_bytes`` as it goes on.
        tasks: Its arguments.
        workers: Most processes at the same time.
        on_bytes: Told how many more bytes the processes have read.

    Raises:
        OSError: The function raised it.
        RuntimeError: The function raised another error, which it names.
    """
    numbered = dict(enumerate(tasks))
    found = _Pool(function, numbered, on_bytes).run(workers)
    lost = {at: task for at, task in numbered.items() if isinstance(found[at], WorkerDied)}
    if lost:
        found |= _Pool(function, lost, on_bytes).run(1)
    return [found[at] for at in numbered]


def report_bytes(count: int) -> None:
    """Tell the owner of this process how many more bytes were read."""
    if _Place.counts is not None:
        _Place.counts[_Place.task] += count


class _Pool(Generic[_Task, _Result]):
    """Processes that do some tasks."""

    def __init__(
        self,
        function: Callable[[_Task], _Result],
        tasks: Mapping[int, _Task],
        on_bytes: Callable[[int], None],
    ) -> None:
        self._function, self._tasks, self._on_bytes = function, tasks, on_bytes
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        _start_server()
        self._shared = self._context.RawArray("q", max(tasks, default=0) + 1)
        self._waiting = deque(tasks)
        self._workers: list[_Worker] = []
        self._found: dict[int, _Result | WorkerDied] = {}
        self._counted = 0

    def run(self, workers: int) -> dict[int, _Result | WorkerDied]:
        """Return the result of each task.

        Raises:
            OSError: The function raised it.
            RuntimeError: The function raised another error.
        """
        try:
            for _ in range(min(workers, len(self._tasks))):
                self._start()
            while self._workers:
                self._wait()
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
        return self._found

    def _start(self) -> None:
        """Start a process and give it a task."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, self._shared, self._function), daemon=True
        )
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        self._give(self._workers[-1])

    def _give(self, worker: _Worker) -> None:
        """Give a process its next task, or let it end."""
        if not self._waiting:
            self._workers.remove(worker)
            worker.pipe.close()
            worker.process.join()
            return
        worker.task = self._waiting.popleft()
        # One that has just died is noticed by the next wait.
        with suppress(OSError):
            worker.pipe.send((worker.task, self._tasks[worker.task]))

    def _wait(self) -> None:
        """Take what processes have to say, until the next report at the latest."""
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(by_pipe), timeout=_POLL_S):
            self._take(by_pipe[cast(Connection, pipe)])
        counts = sum(self._shared)
        self._on_bytes(counts - self._counted)
        self._counted = counts

    def _take(self, worker: _Worker) -> None:
        """Take the result of a process, or note that it has died and start another one."""
        at = cast(int, worker.task)
        try:
            result = worker.pipe.recv()
        except (EOFError, OSError):
            self._found[at] = WorkerDied()
            self._workers.remove(worker)
            worker.process.join()
            if self._waiting:
                self._start()
            return
        if isinstance(result, _Raised):
            raise result.error()
        self._found[at] = result
        self._give(worker)


def _start_server() -> None:
    """Start the server, if it is not there, with the interrupt held back until it can end without a traceback."""
    # Its companion would let the interrupt through again, if it were started later.
    resource_tracker.ensure_running()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _serve(pipe: Connection, counts: Any, function: Callable[[Any], Any]) -> None:
    """Do one task after the other; on an interrupt end at once, for the owner says why."""
    interrupts.end_on_interrupt()
    _Place.counts = counts
    # Ends with the owner, or when it has no more tasks.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            _Place.task, task = pipe.recv()
            pipe.send(_outcome(function, task))


def _outcome(function: Callable[[Any], Any], task: Any) -> Any:
    try:
        return function(task)
    except OSError as error:
        return _Raised(error.strerror or str(error), error.errno, error.filename)
    except Exception as error:  # noqa: BLE001 - it is raised again in the owner
        return _Raised(f"{type(error).__name__}: {error}", None, None)
