"""The profiler, run from the training thread, where Kineto's daemon client is not on.

It begins and ends at step borders, because a profiler that another thread starts sees
nothing. Ending and writing hold the interpreter lock; the time is measured and told.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..clock import now_ns
from ..compat import UnsupportedError, deep_profiler


class InProcessTrace:
    """One recording of this process.

    Attributes:
        stall_ns: Time for which starting and stopping held the training thread up.
        error: Why there is no trace; empty if there is one, or will be.
    """

    def __init__(self, path: Path, written: Callable[[], None]) -> None:
        """Begin with nothing.

        Args:
            path: Where the trace goes; its folder exists.
            written: Called on a thread of its own once it is there, or has failed.
        """
        self.stall_ns = 0
        self.error = ""
        self._path = path
        self._written = written
        self._profiler: Any = None

    def start(self) -> None:
        """Begin to record, on the training thread; what goes wrong is in ``error``."""
        began_ns = now_ns()
        try:
            self._profiler = deep_profiler()
            self._profiler.start()
        except UnsupportedError as reason:
            self._fail(str(reason))
        except Exception as error:  # noqa: BLE001 - told to who asked; training goes on
            self._fail(f"{type(error).__name__}: {error}")
        self.stall_ns += now_ns() - began_ns

    def stop(self) -> None:
        """End the recording, on the training thread; the file is written on another."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        began_ns = now_ns()
        try:
            profiler.stop()
        except Exception as error:  # noqa: BLE001 - told to who asked; training goes on
            self._fail(f"{type(error).__name__}: {error}")
            return
        finally:
            self.stall_ns += now_ns() - began_ns
        threading.Thread(
            target=self._write, args=(profiler,), name="meshscope-trace", daemon=True
        ).start()

    def discard(self) -> None:
        """End the recording and keep nothing, on the training thread."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            try:
                profiler.stop()
            except Exception as error:  # noqa: BLE001 - nothing is wanted of it any more
                sys.stderr.write(f"meshscope: deep trace: {type(error).__name__}: {error}\n")

    def _write(self, profiler: Any) -> None:
        try:
            profiler.export_chrome_trace(str(self._path))
        except Exception as error:  # noqa: BLE001 - told to who asked; training goes on
            self.error = f"{type(error).__name__}: {error}"
        self._written()

    def _fail(self, reason: str) -> None:
        self.error = reason
        self._written()
