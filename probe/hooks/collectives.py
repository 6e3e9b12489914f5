"""Every collective and point-to-point operation, through the operator dispatcher.

Each ``c10d`` operator gets an implementation at the ``BackendSelect`` key,
where none exists, which notes the call and redispatches to the keys after it.
This sees what Python functions do not: the C++ reducer of
DistributedDataParallel, FSDP2, functional collectives, DTensor.

The kernels are closures over what they need, and the events between their
halves are plain tuples: this path runs once a communication call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..clock import now_ns
from ..compat import Dispatcher, dispatcher, process_group_class, source_rank, work_class
from ..schema.records import COLLECTIVE_CODES, DIRECTION_CODES
from ..schema.terms import Direction
from .base import Capture
from .groups import Group, GroupTable
from .operators import NOT_COMMUNICATION, OPERATORS, Operator
from .tags import MessageTags
from .waits import PendingWorks, WaitHook

_NAMESPACE = "c10d"

Event = tuple[int, int, int, bool]
"""Event id, issue time in ns, message size in bytes, and whether the host can
see the end: it can for CPU tensors and where there is no tensor (barriers)."""


class CollectiveHook:
    """Records the issue of every operation, and its end where the host sees it."""

    def __init__(self, capture: Capture, tags: MessageTags) -> None:
        self.source = capture.source("collectives")
        self.pending = PendingWorks(capture)
        self._capture = capture
        self._tags = tags
        self._dtypes: dict[Any, int] = {}
        self._library: Any = None
        self._waits: WaitHook | None = None

    def install(self) -> None:
        """Put an implementation in front of every operator that communicates.

        Raises:
            UnsupportedError: This torch cannot redispatch; nothing is installed then.
        """
        self._groups = GroupTable(self._capture, process_group_class().unbox)
        self._unbox_work = work_class().unbox
        access = dispatcher()
        present = set(access.operators(_NAMESPACE))
        self._library = access.library(_NAMESPACE)
        for operator in OPERATORS:
            if operator.name in present:
                kernel = self._kernel(operator, access)
                self._library.impl(operator.name, kernel, "BackendSelect", with_keyset=True)
        unseen = present - {operator.name for operator in OPERATORS} - NOT_COMMUNICATION
        if unseen:
            self._capture.recorder.annotate("collectives.unknown_operators", sorted(unseen))
        self._waits = WaitHook(self._capture, self.pending, access)
        self._waits.install()

    def remove(self) -> None:
        """Take all implementations away again."""
        self.source.on = False
        if self._waits is not None:
            self._waits.remove()
            self._waits = None
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _kernel(self, operator: Operator, access: Dispatcher) -> Any:
        redispatch = access.redispatch(_NAMESPACE, operator.name)
        keys_after, source = access.keys_after, self.source
        issue = self._collective(operator) if operator.kind else self._message(operator)
        returned = self._returned(operator)

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if not source.on:
                return redispatch(keyset & keys_after, *args, **kwargs)
            try:
                event = issue(args)
            except Exception as error:  # noqa: BLE001 - counted; training goes on
                source.failed(error)
                return redispatch(keyset & keys_after, *args, **kwargs)
            result = redispatch(keyset & keys_after, *args, **kwargs)
            if event[0] >= 0:
                try:
                    returned(args, result, event)
                except Exception as error:  # noqa: BLE001 - counted; training goes on
                    source.failed(error)
            return result

        return kernel

    def _collective(self, operator: Operator) -> Callable[[Any], Event]:
        """Return what records the issue of a collective."""
        capture, group_of, dtype_code = self._capture, self._groups.of, self._dtype_code
        group_at, message = operator.group_at, operator.message
        kind_code = COLLECTIVE_CODES[operator.kind]  # type: ignore[index]
        times_group_size = operator.times_group_size

        def issue(args: Any) -> Event:
            issue_ns = now_ns()
            group = group_of(args[group_at])
            tensors = message(args)
            size_bytes = _size_bytes(tensors)
            if times_group_size:
                size_bytes *= group.size
            seq = group.seq
            group.seq = seq + 1
            event_id = capture.recorder.issue_collective(
                group.code, kind_code, seq, size_bytes, dtype_code(tensors), issue_ns
            )
            return event_id, issue_ns, size_bytes, not tensors or tensors[0].is_cpu

        return issue

    def _message(self, operator: Operator) -> Callable[[Any], Event]:
        """Return what records the issue of a send or receive."""
        capture, group_of, dtype_code = self._capture, self._groups.of, self._dtype_code
        group_at, peer_at, message = operator.group_at, operator.peer_at, operator.message
        direction: Direction = operator.direction  # type: ignore[assignment]
        direction_code = DIRECTION_CODES[direction]
        take_tag = self._tags.take

        def issue(args: Any) -> Event:
            issue_ns = now_ns()
            group = group_of(args[group_at])
            tensors = message(args)
            size_bytes = _size_bytes(tensors)
            peer = -1 if peer_at is None else group.global_rank(args[peer_at])
            microbatch, chunk = take_tag(direction, tensors)
            event_id = capture.recorder.issue_p2p(
                group.code,
                direction_code,
                peer,
                group.next_message(direction, peer),
                size_bytes,
                dtype_code(tensors),
                issue_ns,
                microbatch,
                chunk,
            )
            return event_id, issue_ns, size_bytes, not tensors or tensors[0].is_cpu

        return issue

    def _returned(self, operator: Operator) -> Callable[[Any, Any, Event], None]:
        """Return what looks for the end of an operation, or notes it if the call blocked.

        A wait on a device backend only orders streams, so it tells no end, and
        its handle would keep device memory alive. Barriers wait on the host.
        """
        capture, add, unbox = self._capture, self.pending.add, self._unbox_work
        outputs, blocks = operator.outputs, operator.blocks
        from_anyone = operator.direction is not None and operator.peer_at is None

        def returned(args: Any, result: Any, event: Event) -> None:
            event_id, issue_ns, size_bytes, on_host = event
            boxed = result[-1] if type(result) is tuple else result
            if blocks:
                end_ns = now_ns()
                capture.recorder.complete(event_id, end_ns, issue_ns, end_ns)
            elif boxed is not None and on_host:
                work = unbox(boxed)
                if work is not None:
                    at_end = None
                    if from_anyone:
                        at_end = _count_sender(self._groups.of(args[operator.group_at]))
                    add(work, event_id, size_bytes, outputs(args) if outputs else (), at_end)

        return returned

    def _dtype_code(self, tensors: list[Any]) -> int:
        if not tensors:
            return -1
        dtype = tensors[0].dtype
        code = self._dtypes.get(dtype)
        if code is None:
            code = self._capture.recorder.register_dtype(str(dtype).removeprefix("torch."))
            self._dtypes[dtype] = code
        return code


def _count_sender(group: Group) -> Callable[[Any], None]:
    """Return what counts a message from any sender among those of its sender.

    Otherwise the numbers of later messages from that sender would not match.
    """

    def count(work: Any) -> None:
        group.next_message(Direction.RECV, group.global_rank(source_rank(work)))

    return count


def _size_bytes(tensors: list[Any]) -> int:
    size_bytes = 0
    for tensor in tensors:
        try:
            size_bytes += tensor.nbytes
        except RuntimeError:  # a sparse tensor has no storage of its own
            size_bytes += tensor._values().nbytes + tensor._indices().nbytes
    return size_bytes
