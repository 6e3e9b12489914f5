"""Where the program stood when an exception ended it, or when another rank of its host died.

A launcher ends all ranks a moment after one has failed. Which of them raised an error of its own, which only
noticed that a peer was gone, and where the others were is then in no record. Of the text of an exception, which may
hold anything, no more is kept than whether it tells of a wait for others.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from ..clock import now_ns
from ..hooks.base import Capture
from ..recording.fatal_stack import FatalStack
from ..schema.manifest import LAST_STACK_KEY
from ..schema.terms import StackMoment
from .standstill import MOST_FRAMES, OWN_MODULES, Frame, stack_of

_PEER_LOST = re.compile(
    r"by peer|broken pipe|connection (?:closed|refused)|received errors while waiting"
    r"|remote process exited|communicator (?:is|was) aborted",
    re.IGNORECASE,
)
"""What gloo, NCCL and the store write where a peer is gone."""
_TIMED_OUT = re.compile(r"timed? ?out|timeout|failed to pass monitoredBarrier", re.IGNORECASE)
_MOST_CAUSES = 100
"""Longer chains of exceptions are circles."""


class LastStack:
    """Notes the newest stack of the training thread that may explain how the job ended."""

    def __init__(self, capture: Capture, then: Callable[[BaseException | None], None]) -> None:
        """Prepare.

        Args:
            capture: Where the note goes.
            then: Notes what else is known at that moment.
        """
        self._capture = capture
        self._source = capture.source("last_stack")
        self._then = then
        self._is_final = False
        self._fatal = FatalStack()

    def open(self, directory: Path | None) -> None:
        """Have the interpreter write the stacks where a signal ends the process, once its rank records."""
        if directory is not None:
            self._guarded(lambda: self._fatal.open(directory))

    def look(self, at_standstill: Callable[[], object]) -> None:
        """Look now and then whether the program has closed the file for that; any thread.

        Args:
            at_standstill: Looks where the program stands; not once an exception has ended it: it stands in its exit.
        """
        if not self._is_final:
            at_standstill()
        self._guarded(self._fatal.look)

    def close(self) -> None:
        """Write nothing there any more, also not in a child that was forked."""
        self._guarded(self._fatal.close)

    def note(self, error: BaseException | None = None) -> None:
        """Note it, once an error has been noted no more; any thread.

        Args:
            error: The exception that ends the program; None where another rank has died.
        """
        is_interrupt = isinstance(error, KeyboardInterrupt)
        if self._is_final and (error is None or is_interrupt):
            return
        self._guarded(lambda: self._note(error))
        if not is_interrupt:
            # Who is interrupted at work is behind others by chance.
            self._then(error)

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as failure:  # noqa: BLE001 - counted; the program goes on, or ends as it would
            self._source.failed(failure)

    def _note(self, error: BaseException | None) -> None:
        self._is_final = error is not None
        if error is None:
            moment = StackMoment.OTHER_DIED
            thread = self._capture.step_thread or threading.main_thread().ident
            stack = () if thread is None else stack_of(thread)
        else:
            first = _first_of(error)
            moment, stack = moment_of(first), stack_of_error(first)
        if not stack:
            return
        recorder = self._capture.recorder
        recorder.annotate(
            LAST_STACK_KEY,
            {
                "time_ns": now_ns(),
                "moment": moment.value,
                "stack": [list(frame) for frame in reversed(stack[-MOST_FRAMES:])],
            },
        )
        recorder.publish()


def _first_of(error: BaseException) -> BaseException:
    """Return the exception that one was raised from: who wraps the errors of a library has raised none of its own."""
    for _ in range(_MOST_CAUSES):
        if error.__cause__ is None or error.__cause__.__traceback__ is None:
            break
        error = error.__cause__
    return error


def moment_of(error: BaseException) -> StackMoment:
    """Return whether an exception tells of a wait for others, by its text; of libraries that is a ``RuntimeError``."""
    if isinstance(error, KeyboardInterrupt):
        return StackMoment.INTERRUPTED
    text = str(error) if isinstance(error, RuntimeError) else ""
    if _PEER_LOST.search(text):
        return StackMoment.PEER_LOST
    return StackMoment.TIMED_OUT if _TIMED_OUT.search(text) else StackMoment.RAISED


def stack_of_error(error: BaseException) -> tuple[Frame, ...]:
    """Return the functions that an exception came through, the outermost first."""
    return tuple(
        Frame(frame.f_code.co_qualname, frame.f_code.co_filename, line)
        for frame, line in walk_tb(error.__traceback__)
        if not _is_own(frame)
    )


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(OWN_MODULES)
