"""Links that are slower than the machine: collectives and messages are held back.

Nothing here sleeps where an operation is issued, for that would look like slow
compute. A collective is held on the backend's own thread; a message is held
between its arrival and the end of the receiver's ``Work.wait``. So ranks wait
inside torch's wait, and work that overlaps the transfer still overlaps.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from meshscope.probe.clock import now_ns
from meshscope.probe.schema.terms import Axis

from .compat import process_group, work_from_future
from .ground_truth import Span
from .host_faults import end_process, stand_still
from .mesh import MeshGroup
from .rank_faults import RankFaults


class FaultyLinks:
    """What the faults of this rank do to its collectives and messages.

    Args:
        faults: The faults, and which of them are on.
    """

    def __init__(self, faults: RankFaults) -> None:
        self._faults = faults
        self._issued: dict[str, int] = {}
        self._receives: SlowReceives | None = None

    def install(self, pp: MeshGroup) -> None:
        """Slow the messages between stages, where a fault of this rank does."""
        if any(fault.spec.axis == "pp" for fault in self._faults.of("slow_link")):
            self._receives = SlowReceives(pp, self._message_delay_ns, self._log_message)
            self._receives.install()

    def remove(self) -> None:
        """Let messages pass again."""
        if self._receives is not None:
            self._receives.remove()

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

    def hold(
        self, work: dist.Work, axis: Axis, *, issue_ns: int, size_bytes: int
    ) -> SlowLinkHold | None:
        """Keep a collective on slow links from completing before its time."""
        requested_ns = self._delay_ns(axis, size_bytes)
        if not requested_ns:
            return None
        truth, step = self._faults.truth, self._faults.step

        def log(span_ns: Span) -> None:
            truth.fault(
                "slow_link",
                step,
                span_ns,
                axis=str(axis),
                issue_ns=issue_ns,
                requested_ns=requested_ns,
                size_bytes=size_bytes,
            )

        hold = SlowLinkHold(issue_ns + requested_ns, log)
        work.get_future().then(hold.on_completion)
        return hold

    def _delay_ns(self, axis: Axis, size_bytes: int, sender: int | None = None) -> int:
        """Return the delay of the operation that is issued now; 0 where no slow link is."""
        position = self._issued.get(axis, 0)
        self._issued[axis] = position + 1
        own = self._faults.rank
        return sum(
            fault.transfer_ns(size_bytes)
            for fault in self._faults.active("slow_link")
            if fault.spec.axis == axis
            and (not fault.spec.first or position < fault.spec.first)
            and (
                None in (sender, fault.spec.peer) or {fault.rank, fault.spec.peer} == {sender, own}
            )
        )

    def _message_delay_ns(self, sender: int, size_bytes: int) -> int:
        return self._delay_ns(Axis.PP, size_bytes, sender)

    def _log_message(self, span_ns: Span, sender: int, size_bytes: int) -> None:
        start_ns, end_ns = span_ns
        self._faults.truth.fault(
            "slow_link",
            self._faults.step,
            span_ns,
            axis="pp",
            sender=sender,
            issue_ns=start_ns,
            requested_ns=end_ns - start_ns,
            size_bytes=size_bytes,
        )


class SlowLinkHold:
    """Completes a collective no earlier than a given time.

    gloo marks a collective as complete only after the callbacks of its future
    have run, on the thread that did the transfer. Sleeping there keeps the
    link busy and the waiting rank inside torch's own wait, as a slow link does.

    Args:
        due_ns: The earliest completion.
        log: Takes start and end of the sleep.
    """

    def __init__(self, due_ns: int, log: Callable[[Span], None]) -> None:
        self._due_ns = due_ns
        self._log = log
        self._issuing_thread = threading.get_ident()

    def on_completion(self, _future: object) -> None:
        """Sleep on the backend's thread.

        A future that is complete already calls back on the issuing thread,
        which has other work; ``finish`` then makes up for it.
        """
        if threading.get_ident() != self._issuing_thread:
            self.finish()

    def finish(self) -> None:
        """Sleep for what is left, which after ``on_completion`` is nothing."""
        start_ns = now_ns()
        if start_ns < self._due_ns:
            time.sleep((self._due_ns - start_ns) / 1e9)
            self._log((start_ns, now_ns()))


class SlowReceives:
    """Holds received messages back between their arrival and the end of the wait for them.

    Sends and receives between stages are issued by torch's pipeline runtime, so
    the receive operator itself is replaced, underneath whatever observes it:
    it posts the real receive, and a thread waits for the message, sleeps for
    the link's delay, and completes the handle that the runtime waits for. Only
    receives in CPU memory over gloo pass through here.

    Args:
        group: The ranks whose messages may be slow; others pass.
        delay_ns: Returns the delay of a message from a global rank of the given
            size in bytes; 0 lets it pass.
        log: Takes the span, the sender and the size of a delayed message.
    """

    def __init__(
        self,
        group: MeshGroup,
        delay_ns: Callable[[int, int], int],
        log: Callable[[Span, int, int], None],
    ) -> None:
        self._group = group
        self._delay_ns = delay_ns
        self._log = log
        self._library: Any = None

    def install(self) -> None:
        """Replace the receive operator."""
        self._library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            # torch says that a kernel is overridden, which is what is wanted.
            warnings.simplefilter("ignore", UserWarning)
            self._library.impl("recv_", self._receive, "CPU", allow_override=True)

    def remove(self) -> None:
        """Give the operator its own kernel back."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _receive(self, tensors: list[torch.Tensor], boxed_group: Any, sender: int, tag: int) -> Any:
        """Do what the replaced kernel does, and delay the completion where the link is slow."""
        group = process_group(boxed_group)
        backend: Any = group._get_backend(torch.device("cpu"))
        work = backend.recv(tensors, sender, tag)
        size_bytes = sum(tensor.nbytes for tensor in tensors)
        delay_ns = 0
        if group.group_name == self._group.handle.group_name:
            delay_ns = self._delay_ns(self._group.ranks[sender], size_bytes)
        if not delay_ns:
            return work.boxed()
        arrived: torch.futures.Future[Any] = torch.futures.Future()

        def deliver() -> None:
            try:
                work.wait()
            except RuntimeError as error:  # the sender is gone: the waiting rank must hear of it
                arrived.set_exception(error)
                return
            start_ns = now_ns()
            time.sleep(delay_ns / 1e9)
            self._log((start_ns, now_ns()), self._group.ranks[sender], size_bytes)
            arrived.set_result(tensors)

        threading.Thread(target=deliver, name="slow link", daemon=True).start()
        return work_from_future(arrived).boxed()
