"""Runs a function in the main thread of a program that does not know of us.

Hooks may be put in and taken out only where no operator is being dispatched:
torch reads its table of kernels without a lock. A thread of ours cannot know when
that is. The interpreter's queue of pending calls can: it runs them in the main
thread between two instructions of Python, as it runs signal handlers, and touches
no handler of the program. A main thread that waits in C code for something gets to
it when it comes back. What a signal handler of the program raises meanwhile goes on into
the program's code, as if it had come an instruction later.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from ..safety.program_signals import is_the_programs

_QUEUE_FULL_PAUSE_S = 0.01
_ATTEMPTS = 100
_AGAIN_S = 0.003
"""After this long the main thread is asked again that was where the function may not run."""


class MainThreadJob:
    """One function that runs at most once.

    Attributes:
        error: What the function raised, or a signal handler of the program meanwhile.
    """

    def __init__(self, act: Callable[[], None], may_run: Callable[[], bool] = lambda: True) -> None:
        """Prepare.

        Args:
            act: The function.
            may_run: Asked in the main thread; where it says no, the job is for a later moment.
        """
        self.error: BaseException | None = None
        self._act = act
        self._may_run = may_run
        # Who takes it decides, in one step that no signal handler divides.
        self._turns = [None]
        self._ended = False
        self._came_by = threading.Event()

    def post(self) -> bool:
        """Ask the interpreter to run it; tell whether it took the request.

        On the main thread itself it runs at once.

        Raises:
            BaseException: As ``run``, on the main thread.
        """
        if threading.current_thread() is threading.main_thread():
            self.run()
            return True
        _POSTED.append(self)
        for _ in range(_ATTEMPTS):
            if _add_pending_call(_IS_TRUE, _RUN_POSTED) == 0:
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
        was_open = self._take()
        if was_open:
            self._ended = True
            self._came_by.set()
        return was_open

    def run(self) -> None:
        """Run it, unless it was cancelled, has run or may not run now; an error is kept.

        Raises:
            BaseException: What a signal handler of the program raised meanwhile.
        """
        try:
            if self._may_run() and self._take():
                self._act()
        except BaseException as error:
            self._turns.clear()
            self.error = error
            if is_the_programs(error):
                raise
        finally:
            self._ended = not self._turns
            self._came_by.set()

    def _take(self) -> bool:
        try:
            self._turns.pop()
        except IndexError:
            return False
        return True


_POSTED: deque[MainThreadJob] = deque()


class _Posted:
    """Runs what was posted when it is asked whether it is true, which it is not."""

    def __bool__(self) -> bool:
        while _POSTED:
            _POSTED.popleft().run()
        return False


_RUN_POSTED = _Posted()
"""Made once and kept: the interpreter holds its address."""

_IS_TRUE = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
"""The pending call: a function of the interpreter, so that what is raised in it goes on from it.
A callback of ctypes would only print it."""
_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.argtypes = (ctypes.c_void_p, ctypes.py_object)
_add_pending_call.restype = ctypes.c_int


os.register_at_fork(after_in_child=_POSTED.clear)
