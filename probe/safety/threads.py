"""Threads beside the training, which take none of its signals.

A program may block a signal in its threads and wait for it (``signal.sigwait``). One thread that
does not block it would get it instead, which ends the process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def deaf_threads() -> Iterator[None]:
    """Have threads that this one starts meanwhile block all signals; their own keep so."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_deaf(thread: threading.Thread) -> None:
    """Start a thread to which the system delivers no signal.

    Raises:
        RuntimeError: The system has no thread to give.
    """
    with deaf_threads():
        thread.start()


class Bell:
    """Wakes the one thread that waits for it, now or when it next waits.

    Any thread may ring it, also a signal handler that interrupts just that: an event of
    ``threading`` would stand still there for good.
    """

    def __init__(self) -> None:
        """Make one that was not rung."""
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Wake the thread; what was rung already stays so."""
        with suppress(RuntimeError):
            self._silent.release()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is rung, so long at the most."""
        self._silent.acquire(timeout=timeout_s)
