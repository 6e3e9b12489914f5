"""What a rank offers about deep traces: agree on the steps, then record just these.

First all ranks are asked to prepare; none records before it is told that all agreed. A
rank that the steps have overtaken says so, and everybody is asked again, for later ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..compat.absent import UnsupportedError
from ..compat.profiler import kineto_iterations
from ..control.rank_control import RankControl
from ..control.verbs import Choice, Refusal, Verb, Whole, Word
from ..safety.program_signals import pass_on
from ..schema.deep_trace import TraceName, raw_file
from ..schema.manifest import DEEP_STALLS_KEY, rank_directories
from ..schema.message import message
from .in_process import InProcessTrace
from .kineto_fabric import DAEMON_VARIABLE, DIRECTORY_VARIABLE
from .names import trace_folder

MOST_STEPS = 1000
"""A trace of more steps would be gigabytes, and no tool opens it."""
_LARGEST = (1 << 62) - 1
_MOST_TOLD = 64
"""Traces whose stalls are noted, the newest ones."""


class How(StrEnum):
    """Who records."""

    DAEMON = "daemon"
    """Kineto's own client, which the node agent asks."""
    IN_PROCESS = "in-process"
    """The profiler, on the training thread."""


class Stage(StrEnum):
    """How far a trace of this rank is."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    RECORDING = "recording"
    WRITING = "writing"
    WRITTEN = "written"
    MISSED = "missed"
    """The steps began before all ranks had agreed."""
    FAILED = "failed"


_OVER = (Stage.WRITTEN, Stage.MISSED, Stage.FAILED)


@dataclass(slots=True)
class _Order:
    name: TraceName
    how: How
    path: Path | None = None
    """What the profiler in this process writes; its folder is there."""
    stage: Stage = Stage.PREPARED
    trace: InProcessTrace | None = None
    error: str = ""


def trace_verbs(control: RankControl) -> Iterable[Verb]:
    """Return the verbs about deep traces of a rank."""
    traces = RankTraces(control)
    ticket = {"ticket": Word()}
    steps = {"first_step": Whole(0, _LARGEST), "steps": Whole(1, MOST_STEPS)}
    how = {"how": Choice(tuple(How))}
    return (
        Verb("prepare", "Promise to record some steps in depth.", traces.prepare,
             {**ticket, **steps, **how}),
        Verb("commit", "Record what was promised.", traces.commit, ticket),
        Verb("disarm", "Record nothing in depth after all; without a ticket, whatever it was.",
             traces.disarm, {"ticket": Word(default="")}),
        Verb("traced", "Tell how far a deep trace is.", traces.traced, ticket),
    )  # fmt: skip


class RankTraces:
    """The one deep trace of this process that is on its way, if any."""

    def __init__(self, control: RankControl) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._order: _Order | None = None
        self._recording: _Order | None = None
        """What the profiler records; an order that was called off may have a successor already."""
        self._remove_listener: Any = None
        self._stalls: list[tuple[str, int]] = []
        self._counts = _KinetoCounts()
        if self._counts.is_on:
            control.listeners.add(self._counts.note)

    def prepare(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Promise, unless the steps have begun or another trace is on its way."""
        first, how = int(values["first_step"]), How(values["how"])
        name = TraceName(first, first + int(values["steps"]) - 1, str(values["ticket"]))
        with self._lock:
            order = self._order
            if order is not None and order.stage not in _OVER and order.name != name:
                raise Refusal(message("reply.trace_on_its_way", ticket=order.name.ticket))
            if self._control.step < 0:
                raise Refusal(message("reply.no_step_ended"))
            if self._control.step >= first:
                raise Refusal(message("reply.step_begun", step=self._control.step))
            if how is How.DAEMON and not self._counts.is_on:
                raise Refusal(message("reply.daemon_client_off"))
            path = self._raw_file(name) if how is How.IN_PROCESS else None
            self._order = _Order(name, how, path)
            self._listen()
        return self._said()

    def commit(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the promise good; the reply holds what the agent needs to know of Kineto."""
        with self._lock:
            order = self._own(values["ticket"])
            if order.stage is Stage.MISSED or self._control.step >= order.name.first_step:
                order.stage = Stage.MISSED
                raise Refusal(message("reply.step_begun", step=self._control.step))
            order.stage = Stage.COMMITTED
            said = self._said()
            if order.how is How.DAEMON:
                said |= self._counts.iterations(order.name)
        return said

    def disarm(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Take the promise back; what is being recorded is thrown away at the next step.

        An empty ticket means whatever is on its way, also if it is nothing.
        """
        with self._lock:
            order = self._own(values["ticket"]) if values["ticket"] else self._order
            is_on_its_way = order is not None and order.stage not in _OVER
            if order is not None and is_on_its_way:
                order.stage = Stage.MISSED
            return self._said() | {"called_off": is_on_its_way}

    def traced(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Tell how far the trace is."""
        with self._lock:
            self._own(values["ticket"])
            return self._said()

    def _own(self, ticket: str) -> _Order:
        if self._order is None or self._order.name.ticket != ticket:
            raise Refusal(message("reply.no_trace", ticket=ticket))
        return self._order

    def _said(self) -> dict[str, Any]:
        order = self._order
        trace = None if order is None else order.trace
        return {
            "rank": self._control.rank,
            "pid": os.getpid(),
            "step": self._control.step,
            "stage": None if order is None else order.stage.value,
            "stall_ns": None if trace is None else trace.stall_ns,
            "error": (trace.error if trace else "") or (order.error if order else ""),
        }

    def _listen(self) -> None:
        if self._remove_listener is None:
            self._remove_listener = self._control.listeners.add(self._step_begins, self._hooks_gone)

    def _raw_file(self, name: TraceName) -> Path:
        """Return where the trace of this rank goes; its folder is made here.

        Not when the steps begin: the training thread would wait for the disk.

        Raises:
            Refusal: There is no such place.
        """
        run_path = self._control.run_path
        try:
            folder = run_path and rank_directories(run_path).get(self._control.rank)
            if folder is None:
                raise Refusal(message("reply.no_directory"))
            return raw_file(trace_folder(folder), name, os.getpid())
        except OSError as error:
            raise Refusal(message("reply.no_folder", error=error)) from error

    def _step_begins(self, step: int) -> int:
        """Start or stop, on the training thread, between two steps; return the CPU time of that, ns."""
        order = self._order
        if order is None:
            return 0
        before_ns = _cpu_ns(order)
        try:
            self._discard_called_off()
            self._advance(order, step)
        except BaseException as error:  # noqa: BLE001 - told to who asked; training goes on
            order.stage, order.error = Stage.FAILED, f"{type(error).__name__}: {error}"
            pass_on(error)
        if order.stage in _OVER:
            self._cease_to_listen(order)
        return _cpu_ns(order) - before_ns

    def _cease_to_listen(self, order: _Order) -> None:
        """Hear of no more borders, unless another order has come meanwhile."""
        # Who holds the lock may wait for the disk: then at the next border.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._order is order and self._remove_listener is not None:
                self._remove_listener()
                self._remove_listener = None
        finally:
            self._lock.release()

    def _discard_called_off(self) -> None:
        """Stop the profiler where nobody wants its trace any more."""
        called_off = self._recording
        if called_off is None or called_off.stage not in (Stage.MISSED, Stage.FAILED):
            return
        if called_off.trace is not None:
            called_off.trace.discard()
        self._recording = None

    def _advance(self, order: _Order, step: int) -> None:
        if order.stage is Stage.PREPARED and step >= order.name.first_step:
            order.stage = Stage.MISSED
        elif order.stage is Stage.COMMITTED and step >= order.name.first_step:
            self._begin(order, step)
        elif order.stage is Stage.RECORDING and step > order.name.last_step:
            self._end(order)

    def _hooks_gone(self) -> None:
        """Throw away what is being recorded, as no step border comes any more that would end it.

        What Kineto's client was told to record, it ends by itself.
        """
        order = self._order
        if order is None:
            return
        if order.stage not in (*_OVER, Stage.WRITING):
            order.stage = Stage.MISSED
        try:
            self._discard_called_off()
        finally:
            if self._remove_listener is not None:
                self._remove_listener()
                self._remove_listener = None

    def _begin(self, order: _Order, step: int) -> None:
        if step > order.name.first_step:
            order.stage = Stage.MISSED
            return
        order.stage = Stage.RECORDING
        if order.path is None:
            return

        def written() -> None:
            failed = order.trace is not None and order.trace.error
            order.stage = Stage.FAILED if failed else Stage.WRITTEN

        self._recording = order
        order.trace = InProcessTrace(order.path, written)
        order.trace.start()

    def _end(self, order: _Order) -> None:
        if order.how is How.DAEMON:
            # The agent sees the file when Kineto has written it.
            order.stage = Stage.WRITTEN
            return
        order.stage = Stage.WRITING
        if order.trace is not None:
            order.trace.stop()
            self._note_stall(order.name.ticket, order.trace.stall_ns)

    def _note_stall(self, ticket: str, stall_ns: int) -> None:
        """Put into the capture how long the training thread was held up."""
        self._stalls = [*self._stalls, (ticket, stall_ns)][-_MOST_TOLD:]
        if (recording := self._control.switch.recording) is not None:
            recording.annotate(DEEP_STALLS_KEY, [list(stall) for stall in self._stalls])


def _cpu_ns(order: _Order) -> int:
    return 0 if order.trace is None else order.trace.cpu_ns


class _KinetoCounts:
    """How the steps that Kineto counts go with ours.

    They differ by a start, and by a factor where a step has several optimizers.
    """

    def __init__(self) -> None:
        environment = os.environ
        self.is_on = bool(environment.get(DAEMON_VARIABLE) and environment.get(DIRECTORY_VARIABLE))
        self._before: tuple[int, int] | None = None
        self._latest: tuple[int, int] | None = None

    def note(self, step: int) -> None:
        """Note Kineto's count at the border before a step; on the training thread."""
        try:
            self._before, self._latest = self._latest, (step, kineto_iterations())
        except UnsupportedError:
            self.is_on = False

    def iterations(self, name: TraceName) -> dict[str, int]:
        """Return the iterations of Kineto that are the steps of a trace.

        Raises:
            Refusal: Kineto does not count with the steps.
        """
        if self._before is None or self._latest is None:
            raise Refusal(message("reply.too_few_counted"))
        (step_before, count_before), (step, count) = self._before, self._latest
        a_step, rest = divmod(count - count_before, max(step - step_before, 1))
        if rest or a_step < 1:
            raise Refusal(message("reply.counts_differ"))
        return {
            # Kineto numbers its iterations from 0: the first counted step begins its iteration 0.
            "first_iteration": count - 1 + a_step * (name.first_step - step),
            "iterations": a_step * (name.last_step - name.first_step + 1),
        }
