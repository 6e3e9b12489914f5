"""Links that are slower than the machine: collectives and messages complete late.

Nothing here sleeps where an operation is issued, for that would look like slow
compute, nor in the waiting rank, which would spoil overlap. The operators of
torch.distributed themselves are replaced, underneath whatever observes them::

    issue    the real operation starts; a handle of ours is returned
    thread   waits until it is complete, sleeps for latency + payload / bandwidth,
             completes our handle
    wait     torch's own, of our handle

So every member of a group sees each of its operations end late by the link's
time, those that came early too, and work that overlaps the transfer still does.
On a GPU this is so over gloo, where every operation goes through host memory
while the job has a slow link: it is late there, before it is copied back. What
was queued on the device before the wait goes on meanwhile.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshscope.probe.clock import now_ns
from meshscope.probe.schema.terms import Axis

from ..compat import process_group, replaced_operator, unboxed_work
from ..config.fault_plan import ResolvedFault
from ..layout.group_members import axis_of_description
from ..parallel.host_staging import Message, StagedMessages, as_it_is
from .ground_truth import Span
from .host_faults import end_process, stand_still
from .rank_faults import RankFaults

_RECEIVE = "recv_"
_OPERATORS = ("allreduce_", "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", _RECEIVE)
"""What the trainer and the torch code that it calls issue, as operators of ``c10d``."""


class Operation(NamedTuple):
    """An exchange that is being issued."""

    axis: Axis
    """Direction of its group."""
    ranks: tuple[int, ...]
    """Global ranks of its group."""
    size_bytes: int
    """Payload: the larger of what goes in and what comes out."""
    sender: int | None
    """Global rank that a message comes from; None for a collective."""


class FaultyLinks:
    """What the faults of this rank do to its collectives and messages.

    Args:
        faults: The faults, and which of them are on.
    """

    def __init__(self, faults: RankFaults) -> None:
        self._faults = faults
        self._issued: Counter[Axis] = Counter()
        self._operators: SlowOperators | None = None

    def install(self, messages: StagedMessages | None = None) -> None:
        """Slow the operations of this rank, where the job has a slow link.

        Args:
            messages: What brings messages through host memory, if anything does.
        """
        if self._faults.of("slow_link"):
            self._operators = SlowOperators(self.delay, messages)
            self._operators.install()

    def remove(self) -> None:
        """Let all operations pass again."""
        if self._operators is not None:
            self._operators.remove()

    def begin_step(self) -> None:
        """Count the operations of a new step."""
        self._issued.clear()

    def before(self, axis: Axis | None) -> None:
        """Hang or crash before the first collective of the step in which that is due.

        Args:
            axis: Direction of the collective; None at the end of a step, for
                ranks that have none.
        """
        for fault in self._faults.active("hang", "crash"):
            truth, mode = self._faults.truth, fault.spec.way
            span_ns = (now_ns(), None)
            truth.fault(fault.spec.kind, self._faults.step, span_ns, axis=axis, mode=mode)
            truth.flush()
            if fault.spec.kind == "hang":
                stand_still()
            end_process(mode)

    def delay(self, operation: Operation) -> Delay | None:
        """Return how late an operation that is issued now completes; None for one that is not."""
        axis = operation.axis
        position = self._issued[axis]
        self._issued[axis] += 1
        requested_ns = sum(
            fault.transfer_ns(operation.size_bytes)
            for fault in self._faults.active("slow_link")
            if (not fault.spec.first or position < fault.spec.first)
            and self._passes(operation, fault)
        )
        if not requested_ns:
            return None
        truth, step, issue_ns = self._faults.truth, self._faults.step, now_ns()
        details: dict[str, int] = {"requested_ns": requested_ns, "size_bytes": operation.size_bytes}
        if operation.sender is not None:
            details["sender"] = operation.sender

        def log(span_ns: Span) -> None:
            truth.fault("slow_link", step, span_ns, axis=str(axis), issue_ns=issue_ns, **details)

        return Delay(requested_ns, log)

    def _passes(self, operation: Operation, fault: ResolvedFault) -> bool:
        """Return whether an operation of this rank passes over a slow link."""
        if fault.spec.axis != operation.axis:
            return False
        peer = fault.spec.peer
        if peer is not None and operation.sender is not None:
            return {fault.rank, peer} == {operation.sender, self._faults.rank}
        members, slow = set(operation.ranks), self._faults.slow_group(fault)
        # Parts of the group talk over its links too, and so does a larger one around it.
        return (members <= slow or slow <= members) and peer in (None, *members)


class Delay(NamedTuple):
    """How late an operation completes."""

    dur_ns: int
    """From its real completion."""
    log: Callable[[Span], None]
    """Takes when it was held back."""


class LateWork(dist.Work):
    """An operation that completes some time after the real one.

    Args:
        inner: The real one.
        delay: How late.
        done: Is told when it has been waited for.
    """

    def __init__(
        self,
        inner: dist.Work,
        delay: Delay,
        done: Callable[[LateWork], None] = lambda _work: None,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._delay = delay
        self._done = done
        self._error: RuntimeError | None = None
        self._complete = threading.Event()
        threading.Thread(target=self._deliver, name="slow link", daemon=True).start()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it is complete.

        Raises:
            RuntimeError: The real one has failed: a peer is gone.
        """
        finished = self._complete.wait(timeout.total_seconds() if timeout else None)
        self._done(self)
        if self._error is not None:
            raise self._error
        return finished

    def is_completed(self) -> bool:
        """Return whether ``wait`` would return at once."""
        return self._complete.is_set()

    def _deliver(self) -> None:
        """Complete it when its time has come."""
        try:
            self._inner.wait()
        except RuntimeError as error:  # which the waiting rank must hear of
            self._error = error
        else:
            start_ns = now_ns()
            time.sleep(self._delay.dur_ns / 1e9)
            self._delay.log((start_ns, now_ns()))
        self._complete.set()


class SlowOperators:
    """Operators of torch.distributed that complete late; only operations on host memory do.

    Args:
        delay: Returns how late an operation completes, None to let it pass.
        messages: What brings messages through host memory, where they are late; if anything does.
    """

    def __init__(
        self,
        delay: Callable[[Operation], Delay | None],
        messages: StagedMessages | None = None,
    ) -> None:
        self._delay = delay
        self._messages = messages
        self._library: Any = None
        # torch holds only the part of a work that is no Python object.
        self._running: set[LateWork] = set()

    def install(self) -> None:
        """Replace the operators."""
        self._library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            # torch says that a kernel is overridden, which is what is wanted.
            warnings.simplefilter("ignore", UserWarning)
            for name in _OPERATORS:
                is_message = name == _RECEIVE
                if is_message and self._messages is not None:
                    self._messages.arriving = self._late_message
                else:
                    slow = self._slowed(replaced_operator(name), is_message=is_message)
                    self._library.impl(name, slow, "CPU", allow_override=True)

    def remove(self) -> None:
        """Give the operators their own kernels back."""
        if self._messages is not None:
            self._messages.arriving = as_it_is
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _slowed(self, operate: Callable[..., Any], *, is_message: bool) -> Callable[..., Any]:
        """Return what does as an operator does, and delays the end where the link is slow."""

        def slow(*arguments: Any) -> Any:
            operation = _operation(arguments, is_message=is_message)
            delay = None if operation is None else self._delay(operation)
            result = operate(*arguments)
            if delay is None:
                return result
            if isinstance(result, tuple):  # what a collective has changed, and its handle
                return (*result[:-1], self._late(result[-1], delay))
            return self._late(result, delay)

        return slow

    def _late(self, boxed: Any, delay: Delay) -> Any:
        work = LateWork(unboxed_work(boxed), delay, self._running.discard)
        self._running.add(work)
        return work.boxed()

    def _late_message(self, work: dist.Work, message: Message) -> dist.Work:
        """Return a receive of host memory that completes late where its link is slow."""
        operation = _operation_in(message.group, message.size_bytes, message.sender)
        delay = None if operation is None else self._delay(operation)
        return work if delay is None else LateWork(work, delay)


def _operation(arguments: tuple[Any, ...], *, is_message: bool) -> Operation | None:
    """Return what is issued by the arguments of an operator; None outside the mesh's groups."""
    at = next(i for i, one in enumerate(arguments) if not isinstance(one, Tensor | list))
    size_bytes = max(_size_bytes(one) for one in arguments[:at])
    sender = arguments[at + 1] if is_message else None
    return _operation_in(process_group(arguments[at]), size_bytes, sender)


def _operation_in(
    group: dist.ProcessGroup, size_bytes: int, sender: int | None
) -> Operation | None:
    """Return an operation of a group; None if it is none of the mesh's.

    Args:
        group: The group.
        size_bytes: Payload.
        sender: Who sends a message, by the place in the group; None of a collective.
    """
    axis = axis_of_description(group.group_desc)
    if axis is None:
        return None
    ranks = tuple(dist.get_process_group_ranks(group))
    return Operation(axis, ranks, size_bytes, None if sender is None else ranks[sender])


def _size_bytes(tensors: Tensor | list[Tensor]) -> int:
    """Return the size of one argument that holds tensors."""
    return sum(one.nbytes for one in ([tensors] if isinstance(tensors, Tensor) else tensors))
