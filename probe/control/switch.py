"""Switches the recording of a running process on and off, from any thread.

What takes time (imports, files, the writer's last block) happens in a short-lived
thread of its own; only putting the hooks in and out happens in the main thread.

The hooks can change when nobody is in the middle of what they change. The interpreter runs a pending call between any two instructions of the main thread, so also
in a hook of the program's own that torch calls in a walk over the hooks of optimizers: the walk
would end with an error, in the training code. It may be in a search for a module as well, which
would pass over a finder, or in an implementation of ours that the dispatcher called. Which of
these a thread is in, its frames tell.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from ..safety.threads import start_deaf
from ..settings.config import MOST_CLOSE_S
from .main_thread import MainThreadJob

_OPTIMIZER = "torch.optim.optimizer"
_STEP_WRAPPER = "wrapper"
_PROFILER = "torch.autograd.profiler"
_PLACES = frozenset(
    {
        ("importlib._bootstrap", "_find_spec"),
        ("_frozen_importlib", "_find_spec"),
        ("meshscope.probe.hooks.collectives", "kernel"),
        ("meshscope.probe.hooks.waits", "wait_tensor"),
        ("meshscope.probe.hooks.waits", "wait_tensors"),
    }
)
"""Module and name of functions within which nothing may change."""


def hooks_may_change() -> bool:
    """Tell whether no thread is where it would notice."""
    return not any(_would_notice(frame) for frame in sys._current_frames().values())


def _would_notice(frame: FrameType | None) -> bool:
    inner: FrameType | None = None
    while frame is not None:
        module, name = frame.f_globals.get("__name__"), frame.f_code.co_name
        if (module, name) in _PLACES:
            return True
        if module == _OPTIMIZER and name == _STEP_WRAPPER and _may_walk(frame, inner):
            return True
        inner, frame = frame, frame.f_back
    return False


def _may_walk(wrapper: FrameType, inner: FrameType | None) -> bool:
    """Tell whether a wrapped ``optimizer.step()`` may be in one of its two walks over hooks.

    It is in none while the profiler's mark around it is set or taken away, nor in the step
    itself, which may run all of the training: the closure that it is given.
    """
    if inner is None:
        return True
    step = getattr(wrapper.f_locals.get("func"), "__code__", None)
    return inner.f_code is not step and inner.f_globals.get("__name__") != _PROFILER


_TAKE_LOOK_S = 0.01
_TAKE_LOOKS = round(1.2 * MOST_CLOSE_S / _TAKE_LOOK_S)
"""Together somewhat longer than a recorder takes to close, for what closing does besides."""


class State(StrEnum):
    """What a process does."""

    OFF = "off"
    STARTING = "starting"
    """Asked for; the main thread has not come by yet."""
    RECORDING = "recording"
    STOPPING = "stopping"
    """Asked for; the main thread has not come by yet, or files are being closed."""


class Recording(Protocol):
    """A session, in the four parts that different threads do. None of them raises.

    Attributes:
        run_path: The run directory; None until the rank is known.
        rank: Global rank; -1 until it is known.
        note_death: Notes where this rank is when another one has died; any thread.
    """

    run_path: Path | None
    rank: int
    note_death: Callable[[], None]

    @property
    def coverage(self) -> Mapping[str, str]:
        """Why a source does not record, by source."""

    def prepare(self) -> None:
        """Open files; any thread."""

    def hook(self) -> None:
        """Put the hooks in; main thread."""

    def unhook(self) -> None:
        """Take the hooks out; main thread."""

    def finish(self) -> None:
        """Close files; any thread."""

    def mute(self) -> None:
        """Record nothing from now on; any thread."""

    def flush(self) -> None:
        """Write what was recorded to disk; any thread."""

    def annotate(self, key: str, value: Any) -> None:
        """Put a fact into the capture; any thread."""

    def give_sign_of_life(self, time_ns: int) -> None:
        """Note that the process runs; any thread."""

    def set_level(self, level: str, from_step: int | None = None) -> str:
        """Record at another level from a step on; any thread.

        Raises:
            ConfigError: There is no such level here.
        """


R = TypeVar("R", bound=Recording)


class RecordingSwitch(Generic[R]):
    """The one recording of this process, and what becomes of it.

    Attributes:
        state: What the process does now.
        recording: What is recorded, or is on its way in or out; None when off.
        error: Why the last change failed; empty if it did not.
    """

    def __init__(self, make: Callable[[], R], hooked: Callable[[R | None], None]) -> None:
        """Begin with nothing.

        Args:
            make: Makes a recording that has not begun.
            hooked: Told which recording has its hooks in from now on, None for
                none; called in the main thread.
        """
        self.state = State.OFF
        self.recording: R | None = None
        self.error = ""
        self._make = make
        self._hooked = hooked
        self._lock = threading.Lock()
        self._is_called_off = False
        self._then: Callable[[], None] | None = None
        self._job: MainThreadJob | None = None
        self._thread: threading.Thread | None = None

    def adopt(self, recording: R | None) -> None:
        """Take note that the main thread has begun a recording itself, or ended it."""
        with self._lock:
            self.recording = recording
            self.state = State.OFF if recording is None else State.RECORDING

    def take(self) -> R | None:
        """Hand the recording over to the caller, who ends it in the main thread and now.

        What another thread has begun is brought to its end first. After it has
        closed the recording, the caller says ``adopt(None)``.

        Returns:
            The recording; None if there is none any more.
        """
        with self._lock:
            if self.state is State.RECORDING:
                self.state = State.STOPPING
                return self.recording
            thread = self._thread
            if self.state is State.STARTING:
                self._is_called_off = True
                if self._job is not None:
                    self._job.cancel()
        for _ in range(_TAKE_LOOKS):
            if thread is None or not thread.is_alive():
                break
            # The other thread may be waiting for what only this one can do.
            if (job := self._job) is not None:
                job.run()
            thread.join(_TAKE_LOOK_S)
        return None

    def turn_on(self, wait_s: float) -> State:
        """Begin to record, if nothing is recorded; return the state after a short wait."""
        with self._lock:
            if self.state is State.OFF:
                self.state, self.error, self._is_called_off = State.STARTING, "", False
                self._run_apart(self._start, otherwise=State.OFF)
        return self._after(wait_s)

    def turn_off(self, wait_s: float, then: Callable[[], None] | None = None) -> State:
        """Cease to record; return the state after a short wait.

        Records stop at once; the hooks go when the main thread comes by. A start
        that still waits for it is called off.

        Args:
            wait_s: How long to wait.
            then: Called once everything is closed, on any thread.
        """
        with self._lock:
            self._then = then
            if self.state is State.STARTING:
                self._is_called_off = True
                if self._job is not None:
                    self._job.cancel()
            elif self.state is State.RECORDING:
                self.state, self.error, self._is_called_off = State.STOPPING, "", False
                # Not before there is a thread: a recording that goes on must not be mute.
                if self._run_apart(self._stop, otherwise=State.RECORDING) and self.recording:
                    self.recording.mute()
            is_off = self.state is State.OFF
        if is_off:
            self._call_then()
        return self._after(wait_s)

    def _after(self, wait_s: float) -> State:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(wait_s)
        return self.state

    def _run_apart(self, work: Callable[[], None], *, otherwise: State) -> bool:
        """Run a part of a change on a thread; without one be in another state, and return False."""
        thread = threading.Thread(target=work, name="meshscope-switch", daemon=True)
        try:
            start_deaf(thread)
        except RuntimeError as error:
            # Nobody would ever bring the change to its end; it can be asked for again.
            self._then = None
            self.state, self.error = otherwise, f"no thread for the change: {error}"
            return False
        self._thread = thread
        return True

    def _start(self) -> None:
        try:
            recording = self.recording = self._make()
            recording.prepare()
            are_in = False

            def hook() -> None:
                nonlocal are_in
                try:
                    recording.hook()
                    self._hooked(recording)
                    are_in, self.state = True, State.RECORDING
                except BaseException:
                    # A signal handler of the program: what it raises is for the training code.
                    self._hooked(None)
                    recording.unhook()
                    raise

            self._run_in_main_thread(hook)
            if are_in:
                if self._was_called_off_late():
                    self._stop()
                return
            recording.finish()
        except Exception as error:  # noqa: BLE001 - reported in the status; training goes on
            self.error = f"{type(error).__name__}: {error}"
        self._closed()

    def _was_called_off_late(self) -> bool:
        """Tell whether somebody called the start off while the hooks went in."""
        with self._lock:
            was, self._is_called_off = self._is_called_off, False
            if was:
                self.state = State.STOPPING
        return was

    def _stop(self) -> None:
        recording = self.recording
        try:
            if recording is not None:

                def unhook() -> None:
                    self._hooked(None)
                    recording.unhook()

                self._run_in_main_thread(unhook)
                recording.finish()
        except Exception as error:  # noqa: BLE001 - reported in the status; training goes on
            self.error = f"{type(error).__name__}: {error}"
        self._closed()

    def _closed(self) -> None:
        with self._lock:
            self.recording, self.state = None, State.OFF
        self._call_then()

    def _call_then(self) -> None:
        with self._lock:
            then, self._then = self._then, None
        if then is not None:
            then()

    def _run_in_main_thread(self, act: Callable[[], None]) -> None:
        """Run it there, however long that takes, unless it is called off."""
        job = MainThreadJob(act, hooks_may_change)
        with self._lock:
            if self._is_called_off:
                return
            self._job = job
        try:
            if not job.post():
                self.error = "the interpreter takes no more pending calls"
                return
            job.wait()
        finally:
            with self._lock:
                self._job = None
        if job.error is not None:
            self.error = f"{type(job.error).__name__}: {job.error}"
