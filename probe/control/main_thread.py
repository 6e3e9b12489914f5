"""Runs a function in the main thread of a program that does not know of us.

Hooks may be put in and taken out only where no operator is being dispatched:
torch reads its table of kernels without a lock. A thread of ours cannot know when
that is. The interpreter's queue of pending calls can: it runs them in the main
thread between two instructions of Python, as it runs signal handlers, and touches
no handler of the program. A main thread that waits in C code for something gets to
it when it comes back.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable

_QUEUE_FULL_PAUSE_S = 0.01
_ATTEMPTS = 100
_AGAIN_S = 0.003
"""After this long the main thread is asked again that was where the function may not run."""


class MainThreadJob:
    """One function that runs at most once.

    Attributes:
        has_run: Whether it ran to its end, by an exception or without.
        error: What the function raised, if it did.
    """

    def __init__(self, act: Callable[[], None], may_run: Callable[[], bool] = lambda: True) -> None:
        """Prepare.

        Args:
            act: The function.
            may_run: Asked in the main thread; where it says no, the job is for a later moment.
        """
        self.has_run = False
        self.error: BaseException | None = None
        self._act = act
        self._may_run = may_run
        self._lock = threading.Lock()
        self._settled = False
        self._ended = False
        self._came_by = threading.Event()

    def post(self) -> bool:
        """Ask the interpreter to run it; tell whether it took the request.

        On the main thread itself it runs at once.
        """
        if threading.current_thread() is threading.main_thread():
            self.run()
            return True
        _POSTED.append(self)
        for _ in range(_ATTEMPTS):
            if _add_pending_call(_RUN_POSTED, None) == 0:
                return True
            threading.Event().wait(_QUEUE_FULL_PAUSE_S)
        self.cancel()
        return False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end, posting it again where it may not run; tell whether it has come."""
        while self._came_by.wait(timeout_s):
            self._came_by.clear()
            if self._ended:
                self._came_by.set()  # Whoever asks again learns it too.
                return True
            time.sleep(_AGAIN_S)
            self.post()
        return False

    def cancel(self) -> bool:
        """Make sure that it does not begin any more; tell whether it had not begun."""
        with self._lock:
            was_open, self._settled = not self._settled, True
        if was_open:
            self._end()
        return was_open

    def run(self) -> None:
        """Run it, unless it was cancelled, has run or may not run now; an error is kept."""
        if not self._may_run():
            self._came_by.set()
            return
        # Taken without waiting: another thread that holds it is cancelling.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._settled:
                return
            self._settled = True
        finally:
            self._lock.release()
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - it must not surface in the program's code
            self.error = error
        finally:
            self.has_run = True
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._came_by.set()


_POSTED: deque[MainThreadJob] = deque()


def _run_posted(_: object) -> int:
    while _POSTED:
        _POSTED.popleft().run()
    return 0


_RUN_POSTED = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_posted)
"""Made once and kept: the interpreter holds its address."""

_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.restype = ctypes.c_int


os.register_at_fork(after_in_child=_POSTED.clear)
