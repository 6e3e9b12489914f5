"""Every collective and point-to-point operation, through the operator dispatcher.

Each ``c10d`` operator gets an implementation at the ``BackendSelect`` key,
where none exists, which notes the call and redispatches to the keys after it.
This sees what Python functions do not: the C++ reducer of
DistributedDataParallel, FSDP2, functional collectives, DTensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..clock import now_ns
from ..compat import Dispatcher, dispatcher, process_group_class, source_rank, work_class
from ..schema.records import COLLECTIVE_CODES, DIRECTION_CODES
from ..schema.terms import Direction
from .base import Capture
from .groups import GroupTable
from .operators import NOT_COMMUNICATION, OPERATORS, Operator
from .tags import MessageTags
from .waits import PendingWorks, WaitHook

_NAMESPACE = "c10d"


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
        access = dispatcher()
        self._groups = GroupTable(self._capture, process_group_class().unbox)
        self._unbox_work = work_class().unbox
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
        issued = self._issued_collective if operator.kind else self._issued_message
        returned = self._returned

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if not source.on:
                return redispatch(keyset & keys_after, *args, **kwargs)
            try:
                event = issued(operator, args, now_ns())
            except Exception as error:  # noqa: BLE001 - counted; training goes on
                source.failed(error)
                return redispatch(keyset & keys_after, *args, **kwargs)
            result = redispatch(keyset & keys_after, *args, **kwargs)
            if event.event_id >= 0:
                try:
                    returned(operator, args, result, event)
                except Exception as error:  # noqa: BLE001 - counted; training goes on
                    source.failed(error)
            return result

        return kernel

    def _issued_collective(self, operator: Operator, args: Any, issue_ns: int) -> _Issued:
        group = self._groups.of(args[operator.group_at])
        tensors = operator.message(args)
        size_bytes = _size_bytes(tensors)
        if operator.times_group_size:
            size_bytes *= group.size
        event_id = self._capture.recorder.issue_collective(
            group.code,
            COLLECTIVE_CODES[operator.kind],  # type: ignore[index]
            group.next_seq(),
            size_bytes,
            self._dtype_of(tensors),
            issue_ns,
        )
        return _Issued(event_id, issue_ns, size_bytes, not tensors or tensors[0].is_cpu)

    def _issued_message(self, operator: Operator, args: Any, issue_ns: int) -> _Issued:
        group = self._groups.of(args[operator.group_at])
        tensors = operator.message(args)
        size_bytes = _size_bytes(tensors)
        direction: Direction = operator.direction  # type: ignore[assignment]
        peer = -1 if operator.peer_at is None else group.global_rank(args[operator.peer_at])
        microbatch, chunk = self._tags.take(direction, tensors)
        event_id = self._capture.recorder.issue_p2p(
            group.code,
            DIRECTION_CODES[direction],
            peer,
            group.next_message(direction, peer),
            size_bytes,
            self._dtype_of(tensors),
            issue_ns,
            microbatch,
            chunk,
        )
        return _Issued(event_id, issue_ns, size_bytes, not tensors or tensors[0].is_cpu)

    def _returned(self, operator: Operator, args: Any, result: Any, event: _Issued) -> None:
        """Look for the end of an operation, or note it where the call itself blocked.

        A wait on a device backend only orders streams, so it tells no end, and
        its handle would keep device memory alive. Barriers wait on the host.
        """
        boxed = result[-1] if type(result) is tuple else result
        if boxed is None:
            if operator.blocks:
                end_ns = now_ns()
                self._capture.recorder.complete(event.event_id, end_ns, event.issue_ns, end_ns)
            return
        if event.on_host:
            work = self._unbox_work(boxed)
            if work is not None:
                outputs = operator.outputs(args) if operator.outputs else []
                at_end = None
                if operator.direction is not None and operator.peer_at is None:
                    at_end = self._count_sender(args[operator.group_at])
                self.pending.add(work, event.event_id, event.size_bytes, outputs, at_end)

    def _count_sender(self, boxed_group: Any) -> Callable[[Any], None]:
        """Return what counts a message from any sender among those of its sender.

        Otherwise the numbers of later messages from it would not match.
        """
        group = self._groups.of(boxed_group)

        def count(work: Any) -> None:
            group.next_message(Direction.RECV, group.global_rank(source_rank(work)))

        return count

    def _dtype_of(self, tensors: list[Any]) -> int:
        if not tensors:
            return -1
        dtype = tensors[0].dtype
        code = self._dtypes.get(dtype)
        if code is None:
            code = self._capture.recorder.register_dtype(str(dtype).removeprefix("torch."))
            self._dtypes[dtype] = code
        return code


class _Issued(NamedTuple):
    """An operation that was recorded and is about to go on to the backend."""

    event_id: int
    issue_ns: int
    size_bytes: int
    on_host: bool
    """True where the host can see the end: CPU tensors, and none at all (barriers)."""


def _size_bytes(tensors: list[Any]) -> int:
    size_bytes = 0
    for tensor in tensors:
        try:
            size_bytes += tensor.nbytes
        except RuntimeError:  # a sparse tensor has no storage of its own
            size_bytes += tensor._values().nbytes + tensor._indices().nbytes
    return size_bytes
