"""Optimizer steps: their boundaries, their span, and memory around them.

A step ends when the first optimizer that was seen finishes its ``step()``.
Others of the same step (one per parameter group, or an inner one under a
wrapper) do not end it again. One that was replaced while something still holds it gives
way to another that goes on ending without it. A framework whose step goes on after that
(gathering updated parameters) marks the end itself. Once the training code marks its own
boundary, only that one counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from enum import IntEnum
from threading import get_ident
from typing import Any

from ..clock import now_ns, thread_cpu_ns
from ..compat.absent import lacks
from ..schema.manifest import LED_ANEW_KEY, OTHER_UPDATES_KEY
from ..schema.terms import MemoryPhase, SpanKind
from .base import Capture, Place
from .memory import MemoryHook

_MOST_TOLD = 16
_OPTIMIZER = Place(SpanKind.OPTIMIZER)
_REPLACED_AFTER = 8
"""Ends of one optimizer without the one that leads, from which on it leads itself. A critic
that is updated some times for each update of its generator stays below."""

_LOOKED_AT = frozenset({16, 64, 256})
"""Ends of the leader after which its updates are compared with those of the others."""
_MOST_OTHERS = 64


class Boundary(IntEnum):
    """Who says where a step ends; of several the greatest is believed."""

    OPTIMIZER = 0
    FRAMEWORK = 1
    CALLER = 2


class StepHook:
    """Ends steps, and tells the other hooks about it.

    Attributes:
        is_bare: Only that, with no span and no memory: what a comparison cannot do without.
    """

    def __init__(
        self,
        capture: Capture,
        memory: MemoryHook | None,
        at_end: Sequence[Callable[[], None]],
        before_end: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Prepare.

        Args:
            capture: Where records go.
            memory: Samples memory around the borders, if that is wanted.
            at_end: Called when a step has ended and the next one has begun.
            before_end: Called just before, to record what is still of the step.
        """
        self.source = capture.source("steps")
        self.is_bare = False
        self._capture = capture
        self._memory = memory
        self._at_end = at_end
        self._before_end = before_end
        self._handles: list[Any] = []
        self._leader: weakref.ref[Any] | None = None
        # How often others ended since the leader did, by id, and the most between two of its ends.
        self._without_leader: dict[int, int] = {}
        self._most_now = self._most_between = 0
        self._led_anew: list[int] = []
        self._ends = 0
        self._other_ends: dict[int, int] = {}
        self._running: tuple[Any, int, int, Any] | None = None
        self._believed = Boundary.OPTIMIZER
        self._start_ns = now_ns()

    def install(self) -> None:
        """Register the hooks that torch offers for all optimizers.

        Raises:
            UnsupportedError: This torch has none.
        """
        from torch.optim import optimizer

        if not hasattr(optimizer, "register_optimizer_step_post_hook"):
            raise lacks("torch.optim.optimizer.register_optimizer_step_post_hook")
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(self._before),
            optimizer.register_optimizer_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Unregister the hooks."""
        self.source.on = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def leave_to(self, boundary: Boundary) -> None:
        """Announce who will mark the ends of steps, before the first one."""
        self._believed = max(self._believed, boundary)

    def end_step(self, tokens: int | None, said_by: Boundary = Boundary.CALLER) -> None:
        """End the step here, and from now on only where the same one says so.

        Args:
            tokens: Tokens that this replica trained on in the step, if known.
            said_by: Who says it; ignored where somebody greater has spoken.
        """
        if said_by < self._believed:
            return
        before, self._believed = self._believed, said_by
        if said_by > before and self._ended_before():
            # Who was believed so far has just ended this very step.
            return
        self._end(tokens)

    def _ended_before(self) -> bool:
        return self._leader is not None and self._capture.recorder.step > 0

    def _before(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Start the span of an outermost ``optimizer.step()``.

        One that raised left its mark behind; it is recognised by coming again.
        """
        if self.is_bare or not self.source.on:
            return
        try:
            if self._running is not None and self._running[0] is not optimizer:
                return
            entered_ns = thread_cpu_ns()
            self._capture.open()
            self._sample(MemoryPhase.AFTER_BACKWARD)
            device = self._capture.device_times
            begin = None if device is None else device.begin()
            start_cpu_ns = thread_cpu_ns()
            self._capture.meter.add_border(start_cpu_ns - entered_ns)
            self._running = (optimizer, now_ns(), start_cpu_ns, begin)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def _after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Record the span; end the step if this optimizer leads."""
        if not self.source.on:
            return
        if self.is_bare:
            self._after_bare(optimizer)
            return
        if self._running is None or self._running[0] is not optimizer:
            return
        try:
            _, start_ns, start_cpu_ns, begin = self._running
            self._running = None
            event_id = self.source.record_span(_OPTIMIZER, start_ns, start_cpu_ns)
            if self._capture.device_times is not None:
                self._capture.device_times.end(begin, event_id)
            self._end_if_led_by(optimizer)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def _after_bare(self, optimizer: Any) -> None:
        self._running = None
        try:
            self._end_if_led_by(optimizer)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def _end_if_led_by(self, optimizer: Any) -> None:
        leader = None if self._leader is None else self._leader()
        if leader is None:
            self._leader = weakref.ref(optimizer)
            leader = optimizer
        if leader is not optimizer:
            self._count_other(id(optimizer))
            if not self._has_replaced_leader(optimizer):
                return
        self._ends += 1
        if self._ends in _LOOKED_AT and self._other_ends:
            self._tell_other_updates()
        if self._without_leader:
            self._most_between = max(self._most_between, self._most_now)
            self._most_now = 0
            self._without_leader.clear()
        if self._believed is Boundary.OPTIMIZER:
            self._end(None)

    def _count_other(self, key: int) -> None:
        if key in self._other_ends or len(self._other_ends) < _MOST_OTHERS:
            self._other_ends[key] = self._other_ends.get(key, 0) + 1

    def _tell_other_updates(self) -> None:
        """Note how often another optimizer was updated, if not once a step: a critic, or an outer optimizer."""
        most = max(self._other_ends.values(), key=lambda ends: abs(ends - self._ends))
        # The last step may have begun.
        if self._believed is Boundary.OPTIMIZER and abs(most - self._ends) > 1:
            self._capture.recorder.annotate(OTHER_UPDATES_KEY, [self._ends, most])

    def _has_replaced_leader(self, optimizer: Any) -> bool:
        """Count an end without the leader; lead by this one after more than one step can have.

        Counted, not timed, so that all ranks of a job change in the same step.
        """
        key = id(optimizer)
        self._without_leader[key] = ends = self._without_leader.get(key, 0) + 1
        if ends < _REPLACED_AFTER or ends < 2 * self._most_between:
            if ends > self._most_now:
                self._most_now = ends
            return False
        self._most_now = 0  # These were steps of its own: they say nothing of what one step has.
        self._leader = weakref.ref(optimizer)
        if self._believed is Boundary.OPTIMIZER:
            recorder = self._capture.recorder
            self._led_anew = [*self._led_anew, recorder.step][-_MOST_TOLD:]
            recorder.annotate(LED_ANEW_KEY, list(self._led_anew))
        return True

    def _end(self, tokens: int | None) -> None:
        capture = self._capture
        entered_ns = thread_cpu_ns()
        capture.open()
        was_bare = self.is_bare
        read = self._sample(MemoryPhase.AFTER_OPTIMIZER)
        self._call(self._before_end)
        end_ns = now_ns()
        recorder = capture.recorder
        recorder.record_step(
            recorder.step,
            self._start_ns,
            end_ns - self._start_ns,
            (capture.activity.tokens or -1) if tokens is None else tokens,
            capture.level,
        )
        self._start_ns = end_ns
        recorder.step += 1
        capture.step_thread = get_ident()
        capture.activity.step_ends()
        self._call(self._at_end)
        self._sample(MemoryPhase.STEP_START, read)
        taken_ns = thread_cpu_ns() - entered_ns
        capture.meter.add_border(taken_ns)
        if was_bare and self.is_bare:
            capture.meter.bare.add(taken_ns)

    def _call(self, acts: Sequence[Callable[[], None]]) -> None:
        for act in acts:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - counted; the others still act
                self.source.failed(error)

    def _sample(
        self, phase: MemoryPhase, read_before: dict[str, int] | None = None
    ) -> dict[str, int] | None:
        if self._memory is None or self.is_bare:
            return None
        return self._memory.sample(phase, read_before)
