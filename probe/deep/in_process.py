"""The profiler, run from the training thread, where Kineto's daemon client is not on.

It begins and ends at step borders, because a profiler that another thread starts sees
nothing. Ending and writing hold the interpreter lock; the time is measured and reported.
It gives way to a profiler that the training code starts meanwhile: of two at a time both
would get nothing whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..clock import now_ns, thread_cpu_ns
from ..compat.absent import UnsupportedError, error_reason
from ..compat.profiler import before_other_profiler, deep_profiler, is_profiling
from ..safety.notices import tell
from ..safety.program_signals import is_the_programs, pass_on
from ..safety.threads import start_deaf
from ..schema.message import Message, message


class InProcessTrace:
    """One recording of this process.

    Attributes:
        stall_ns: Time for which starting and stopping held the training thread up.
        cpu_ns: CPU time of that thread in it.
        error: Why there is no trace; empty if there is one, or will be.
    """

    def __init__(self, path: Path, written: Callable[[], None]) -> None:
        """Begin with nothing.

        Args:
            path: Where the trace goes; its folder exists.
            written: Called on a thread of its own once it is there, or has failed.
        """
        self.stall_ns = self.cpu_ns = 0
        self.error = ""
        self._path = path
        self._written = written
        self._profiler: Any = None
        self._thread = -1
        self._stop_watching: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to record, on the training thread; what goes wrong is in ``error``."""
        began_ns, began_cpu_ns = now_ns(), thread_cpu_ns()
        try:
            self._profiler = deep_profiler()
            self._profiler.start()
            self._thread = threading.get_ident()
            self._stop_watching = before_other_profiler(self._give_way)
        except UnsupportedError as error:
            self._fail(error.reason)
        except BaseException as error:  # noqa: BLE001 - told to who asked; training goes on
            self._broke_off(error, self._profiler)
        finally:
            self._held_up(began_ns, began_cpu_ns)

    def stop(self) -> None:
        """End the recording, on the training thread; the file is written on another."""
        profiler = self._let_go()
        if profiler is None:
            return
        if is_profiling() is False:
            self._fail(message("absent.profile_ended"))
            return
        began_ns, began_cpu_ns = now_ns(), thread_cpu_ns()
        try:
            profiler.stop()
        except BaseException as error:  # noqa: BLE001 - told to who asked; training goes on
            self._broke_off(error, profiler)
            return
        finally:
            self._held_up(began_ns, began_cpu_ns)
        thread = threading.Thread(
            target=self._write, args=(profiler,), name="meshscope-trace", daemon=True
        )
        try:
            start_deaf(thread)
        except RuntimeError as error:
            pass_on(error)
            self._fail(message("absent.thread", error=str(error)))

    def discard(self) -> None:
        """End the recording and keep nothing, on the training thread."""
        profiler = self._let_go()
        if profiler is None or is_profiling() is False:
            return
        try:
            profiler.stop()
        except BaseException as error:
            if is_the_programs(error):
                self._profiler = profiler  # It may be on still.
                raise
            tell(f"deep trace: {type(error).__name__}: {error}")

    def _held_up(self, since_ns: int, since_cpu_ns: int) -> None:
        self.stall_ns += now_ns() - since_ns
        self.cpu_ns += thread_cpu_ns() - since_cpu_ns

    def _let_go(self) -> Any:
        """Return the profiler if there is one, which from now on is no longer ours to stop."""
        self._stop_watching()
        profiler, self._profiler = self._profiler, None
        return profiler

    def _give_way(self) -> None:
        """End the recording before the training code begins one of its own."""
        # From another thread it can be neither stopped nor disturbed.
        if self._profiler is not None and threading.get_ident() == self._thread:
            self.discard()
            self._fail(message("absent.gave_way"))

    def _write(self, profiler: Any) -> None:
        try:
            profiler.export_chrome_trace(str(self._path))
        except Exception as error:  # noqa: BLE001 - told to who asked; training goes on
            self.error = str(error_reason(error))
        self._written()

    def _broke_off(self, error: BaseException, profiler: Any) -> None:
        """Say why there is no trace; pass on what a signal handler of the program has raised.

        The profiler may be on then, and is to be discarded.
        """
        self._profiler = profiler if is_the_programs(error) else None
        self._fail(error_reason(error))
        pass_on(error)

    def _fail(self, reason: Message) -> None:
        self.error = str(reason)
        self._written()
