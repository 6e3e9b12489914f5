"""Waits for a disk no longer than so: whatever it does, the training begins and ends."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from .program_signals import pass_on
from .threads import start_deaf

T = TypeVar("T")


class _Work(Generic[T]):
    """A function that runs in a thread of its own, and may be given up."""

    def __init__(self, act: Callable[[], T], late: Callable[[T], object] | None) -> None:
        self._act, self._late = act, late
        self._lock = threading.Lock()
        self._given_up = False
        self.ended = threading.Event()
        self.found: list[T] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            found = self._act()
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self.error = error
        else:
            with self._lock:
                is_late = self._given_up
                if not is_late:
                    self.found.append(found)
            if is_late and self._late is not None:
                self._late(found)
        self.ended.set()

    def give_up(self) -> bool:
        """Have what it returns go to ``late`` from now on; tell whether there was nothing yet."""
        with self._lock:
            self._given_up = not self.found and self.error is None
            return self._given_up


def within(seconds: float, act: Callable[[], T], late: Callable[[T], object] | None = None) -> T:
    """Return what a function returns that uses a disk, but wait for it no longer than so.

    Args:
        seconds: The longest wait.
        act: Runs in a thread of its own, where no signal is handled.
        late: Gets what it returns after nobody waits any more, there.

    Raises:
        TimeoutError: It was not done by then; it goes on.
        Exception: What the function has raised.
    """
    work = _Work(act, late)
    thread = threading.Thread(target=work.run, name="meshscope-disk", daemon=True)
    try:
        start_deaf(thread)  # Signals are for the thread that waits.
    except RuntimeError as error:
        pass_on(error)
        work.run()  # The system has no thread to give.
    try:
        if not work.ended.wait(seconds) and work.give_up():
            raise TimeoutError(errno.ETIMEDOUT, "the disk does not answer")
    except BaseException:
        # Also a signal handler of the program may end the wait.
        if not work.give_up() and late is not None:
            for found in work.found:
                late(found)
        raise
    if thread.is_alive():
        thread.join(seconds)  # It has only to end.
    if work.error is not None:
        raise work.error
    return work.found[0]
