"""When communication ran on the device, and how long the computing waited for it there.

Off by default. Two things tell it:

- **Events of our own on the stream of the caller**, as for stages. The host issues an
  operation and goes on; the device gets to that place later. An event there tells when the
  input was ready. From torch 2.7 on NCCL runs what the host called without ``async_op`` on that
  very stream, and gives no handle: an event behind the call tells its end. What has a handle runs
  on a stream of NCCL's; ``wait()`` makes the stream of the caller wait for it: events around
  that tell from when to when it did, which is what the operation held up. The reducer of
  DistributedDataParallel waits in C++ when a backward is computed: events go around its callback.
- **The backend's own events**, which tell how long an operation took. Where the job lets the
  device run one connection only (``CUDA_DEVICE_MAX_CONNECTIONS=1``, which tensor parallelism of
  some frameworks needs), these stop communication from running beside compute.

Operations between the begin and the end of a group are launched together at its end: they share
its events, and the handle that it gives. Handles keep the tensors of their operation alive, so
few are kept, and none beyond the step after.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from sys import getrefcount
from typing import Any, NamedTuple

from ..compat.absent import UnsupportedError, error_reason
from ..compat.works import (
    calls_around_groups,
    device_duration_ns,
    device_work_timing,
    enable_device_timing,
    when_computed,
    work_class,
)
from ..safety.program_signals import pass_on
from ..schema.message import Message, message, message_to_json
from ..settings.config import ProbeConfig
from .base import Capture, Patches
from .device_times import DeviceTimes, Mark
from .groups import GroupTable

_ONLY_OURS = 2
"""References to a handle that nobody else in Python holds: that of the table and of the question."""
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def refusal(config: ProbeConfig, environment: Mapping[str, str]) -> Message | None:
    """Return why collectives should not be timed on the device here; None if they may."""
    if environment.get(_CONNECTIONS) == "1" and not config.force_collective_times:
        return message("absent.one_connection", variable=_CONNECTIONS)
    return None


class _Operation(NamedTuple):
    """One operation that was called."""

    event_id: int
    receives: bool


class _Held(NamedTuple):
    """Operations that a stream may still wait for, by one handle."""

    work: Any
    operations: Sequence[_Operation]
    issue: Mark | None
    step: int


class _Wait(NamedTuple):
    """A wait that is being queued."""

    begin: Mark
    held: _Held


class CollectiveTimes:
    """Times operations on the device, and the waits for them."""

    def __init__(self, capture: Capture, groups: GroupTable | None) -> None:
        """Prepare.

        Args:
            capture: Where records go.
            groups: The process groups of the collective hook; None where that is off.
        """
        self.source = capture.source("collective_times")
        self._capture = capture
        self._groups = groups
        self._durations: deque[_Held] = deque()
        self._waited: dict[int, _Held] = {}
        self._gathered: list[_Operation] | None = None
        self._in_backward: list[int] = []
        self._patches = Patches(self.source)

    def install(self) -> None:
        """Have all process groups time what they run from now on.

        Raises:
            UnsupportedError: It would harm the job, or this torch cannot do it.
        """
        reason = refusal(self._capture.config, os.environ)
        if reason is not None:
            raise UnsupportedError(reason)
        device_work_timing()
        if self._groups is None:
            raise UnsupportedError(message("absent.collectives"))
        self._unbox = work_class().unbox
        owner, calls = calls_around_groups()
        if calls is not None:
            self._patches.replace(owner, calls[0], self._wrap_group_begin)
            self._patches.replace(owner, calls[1], self._wrap_group_end)
        self._groups.watch(self._enable)
        self._capture.device_works = self

    def remove(self) -> None:
        """Let go of all handles. The backend goes on timing: torch cannot turn that off."""
        self.source.on = False
        self._capture.device_works = None
        self._patches.restore()
        if self._groups is not None:
            self._groups.watch(None)
        if self._durations:
            self._capture.recorder.count("collective_times_dropped", len(self._durations))
        self._durations.clear()
        self._waited.clear()

    def step_ended(self) -> None:
        """Record what is complete; give up what is older than a step."""
        oldest = self._capture.recorder.step - 1
        try:
            for _ in range(len(self._durations)):
                held = self._durations.popleft()
                dur_ns = device_duration_ns(held.work)
                if dur_ns is not None:
                    for own in held.operations:
                        self._capture.recorder.record_device_time(own.event_id, -1, dur_ns)
                elif held.step >= oldest:
                    self._durations.append(held)
                else:
                    self._capture.recorder.count("collective_times_dropped")
            for key in list(self._waited):
                # What nobody else holds in Python nobody will wait for there.
                if self._waited[key].step < oldest or self._is_ours(key):
                    self._give_up(key)
            self._in_backward.clear()
            self._gathered = None  # An exception may have left the group without its end.
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def begin(self) -> Mark | None:
        """Note that an operation is called now; return what ``issued`` needs."""
        stream = self._stream()
        return None if stream is None or self._gathered is not None else stream.mark()

    def issued(self, begin: Any, boxed: Any, event_id: int, *, receives: bool) -> None:
        """Take an operation that was called: end its pair of events, or keep its handle."""
        if not self.source.on:
            return
        operation = _Operation(event_id, receives)
        if self._gathered is not None:
            self._gathered.append(operation)
            return
        self._take(begin, None if boxed is None else self._unbox(boxed), (operation,))

    def wait_begins(self, work: Any) -> _Wait | None:
        """Note that a stream begins to wait for an operation; None if it is not known."""
        try:
            held, stream = self._waited.pop(id(work), None), self._stream()
            begin = None if held is None or stream is None else stream.mark()
            return None if held is None or begin is None else _Wait(begin, held)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None

    def wait_ended(self, begin: Any) -> None:
        """Note that the wait was queued that ``wait_begins`` has noted."""
        try:
            mark, held = begin
            stream = self._stream()
            if stream is not None:
                stream.end_operation(mark, self._taker(mark, held), held.issue)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def _stream(self) -> DeviceTimes | None:
        found = self._capture.device_times
        return found if self.source.on and isinstance(found, DeviceTimes) else None

    def _take(self, begin: Mark | None, work: Any, operations: Sequence[_Operation]) -> None:
        """End the pair of operations without a handle, or keep the handle of others."""
        if work is None:
            stream = self._stream()
            if begin is not None and stream is not None:
                taken = partial(self._ran, operations, stream.computes_on(begin.stream))
                stream.end_operation(begin, taken)
            return
        most, key = self._capture.config.max_pending_works, id(work)
        held = _Held(work, operations, begin, self._capture.recorder.step)
        if len(self._durations) < most:
            self._durations.append(held)
        else:
            self._capture.recorder.count("collective_times_dropped", len(operations))
        if len(self._waited) >= most:
            self._give_up(next(iter(self._waited)))
        self._waited[key] = held
        if self._in_backward or when_computed(self._computed):
            self._in_backward.append(key)

    def _computed(self) -> None:
        """Note that a backward is computed; what was queued before the end of the next call waits.

        Calls are made in the order in which they were queued: that of a reducer comes in between, as
        it is queued by its last bucket.
        """
        try:
            issued, self._in_backward = self._in_backward, []
            stream = self._stream()
            begin = None if stream is None else stream.mark()
            if begin is not None:
                when_computed(partial(self._waited_in_backward, begin, issued))
        except Exception as error:  # noqa: BLE001 - counted; training goes on, which called this
            self.source.failed(error)

    def _waited_in_backward(self, begin: Mark | None, issued: Sequence[int]) -> None:
        """End the wait for those operations of a backward whose handles nobody holds in Python.

        It is that for the last of them: they run in the order of their issue. The others were over
        when it ended, at the latest.
        """
        try:
            own = [key for key in issued if self._is_ours(key)]
            stream = self._stream()
            for key in reversed(own):
                held = self._waited.pop(key)
                if stream is not None and begin is not None:
                    stream.end_operation(begin, self._taker(begin, held), held.issue)
                    begin = stream.mark()
        except Exception as error:  # noqa: BLE001 - counted; training goes on, which called this
            self.source.failed(error)

    def _is_ours(self, key: int) -> bool:
        held = self._waited.get(key)
        return held is not None and getrefcount(held.work) <= _ONLY_OURS

    def _give_up(self, key: int) -> None:
        held, stream = self._waited.pop(key, None), self._stream()
        if held is not None and stream is not None:
            stream.drop(held.issue)

    def _taker(self, begin: Mark, held: _Held) -> Callable[[int, int, int], None]:
        stream = self._stream()
        holds_up = stream is not None and stream.computes_on(begin.stream)
        return partial(self._was_waited_for, held.operations, holds_up)

    def _ran(
        self,
        operations: Sequence[_Operation],
        holds_up: bool,  # noqa: FBT001 - bound before its call
        _issue_ns: int,
        begin_ns: int,
        end_ns: int,
    ) -> None:
        """Record operations that ran on the stream of the caller, from their begin to their end."""
        recorder, waited = self._capture.recorder, _waited_of(operations)
        for own in operations:
            recorder.record_device_time(own.event_id, begin_ns, end_ns - begin_ns)
            if holds_up:
                wait_ns = begin_ns if own is waited else end_ns
                recorder.complete(own.event_id, end_ns, wait_ns, end_ns)
            else:
                recorder.complete(own.event_id, end_ns, 0, 0)

    def _was_waited_for(
        self,
        operations: Sequence[_Operation],
        holds_up: bool,  # noqa: FBT001 - bound before its call
        issue_ns: int,
        begin_ns: int,
        end_ns: int,
    ) -> None:
        """Record a wait for operations of another stream; how long they took the backend tells."""
        recorder, waited = self._capture.recorder, _waited_of(operations)
        for own in operations:
            recorder.record_device_time(own.event_id, issue_ns, -1)
            if holds_up:
                wait_ns = begin_ns if own is waited else end_ns
                recorder.complete(own.event_id, end_ns, wait_ns, end_ns)

    def _wrap_group_begin(self, original: Any) -> Any:
        call = getattr(original, "__func__", original)

        @wraps(original)
        def start_coalescing(*args: Any, **kwargs: Any) -> Any:
            self._gathered = []
            return call(*args, **kwargs)

        return start_coalescing

    def _wrap_group_end(self, original: Any) -> Any:
        call, take, source = getattr(original, "__func__", original), self._take, self.source

        @wraps(original)
        def end_coalescing(*args: Any, **kwargs: Any) -> Any:
            gathered, self._gathered = tuple(self._gathered or ()), None
            begin = self._mark_group(gathered)
            work = call(*args, **kwargs)
            try:
                if gathered and source.on:
                    take(begin, work, gathered)
            except Exception as error:  # noqa: BLE001 - counted; training goes on
                source.failed(error)
            return work

        return end_coalescing

    def _mark_group(self, gathered: Sequence[_Operation]) -> Mark | None:
        stream = self._stream()
        return stream.mark() if gathered and stream is not None else None

    def _enable(self, process_group: Any) -> None:
        try:
            enable_device_timing(process_group)
        except Exception as error:  # noqa: BLE001 - a backend without timing (gloo) is left alone
            pass_on(error)
            self._capture.recorder.annotate(
                "collective_times.partly", message_to_json(error_reason(error))
            )


def _waited_of(operations: Sequence[_Operation]) -> _Operation:
    """Return which of some operations that end together holds up the computing.

    The last receive if there is one, since what is sent waits for nobody's computing.
    """
    receives = [own for own in operations if own.receives]
    return (receives or operations)[-1]
