"""Work that the training thread does at the end of a step, asked for by another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from .clock import now_ns
from .safety.program_signals import is_the_programs

StepEnded = Callable[[int], int | None]
"""Takes the number of the step that begins now. Returns the CPU time of what somebody asked for, which is no
cost of the hooks, ns; None without such a thing."""
Failed = Callable[[BaseException], None]
"""Gets the error of a listener."""


class _Listener(NamedTuple):
    act: StepEnded
    hooks_gone: Callable[[], None] | None


class StepListeners:
    """Functions that are called on the training thread when a step has ended.

    They outlive a recording. Without any, the end of a step costs two calls and
    the reading of a clock. A listener that raises is removed.

    Attributes:
        step: The step in progress; -1 before the end of the first.
        ended_ns: When the last step ended, monotonic; -1 before.
    """

    def __init__(self) -> None:
        self.step = -1
        self.ended_ns = -1
        self._listeners: tuple[_Listener, ...] = ()
        self._lock = threading.Lock()

    def add(
        self, act: StepEnded, hooks_gone: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Call a function at the end of every step from now on; return what ends that.

        Both may be called on any thread, also by a listener.

        Args:
            act: What is called.
            hooks_gone: Called in the main thread when the hooks are taken out, after which no
                step is seen to end: what waits for one has to be ended now.
        """
        listener = _Listener(act, hooks_gone)
        with self._lock:
            self._listeners = (*self._listeners, listener)
        return lambda: self._remove(listener)

    def reset(self) -> None:
        """Forget the step, when the recording that counted it is over."""
        self.step = self.ended_ns = -1

    def ended(self, step: int, failed: Failed) -> int:
        """Tell the listeners that a step has ended; return the CPU time of what was asked for, ns.

        Called on the training thread.

        Args:
            step: The step that begins now.
            failed: Gets the error of a listener.
        """
        self.step, self.ended_ns = step, now_ns()
        asked_ns = 0
        for listener in self._listeners:
            try:
                asked_ns += listener.act(step) or 0
            except Exception as error:  # noqa: BLE001 - counted; training goes on
                if not is_the_programs(error):
                    self._remove(listener)
                failed(error)
        return asked_ns

    def hooks_gone(self, failed: Failed) -> None:
        """Tell the listeners that no further step is seen to end; called in the main thread."""
        for listener in self._listeners:
            try:
                if listener.hooks_gone is not None:
                    listener.hooks_gone()
            except Exception as error:  # noqa: BLE001 - counted; the others are told too
                failed(error)

    def _remove(self, listener: _Listener) -> None:
        with self._lock:
            self._listeners = tuple(kept for kept in self._listeners if kept is not listener)
