"""Every collective and point-to-point operation, through the operator dispatcher.

Each ``c10d`` operator gets an implementation at the ``BackendSelect`` key,
where none exists, which notes the call and redispatches to the keys after it.
This sees what Python functions do not: the C++ reducer of
DistributedDataParallel, FSDP2, functional collectives, DTensor.

The kernels are closures over what they need, written out in one function each: this
path runs once a communication call, and each call in it is a tenth of a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from ..clock import now_ns, thread_cpu_ns
from ..compat.torch_names import Dispatcher, dispatcher, dispatcher_hop_ns, process_group_class
from ..compat.works import source_rank, work_class
from ..cost import ONE_IN
from ..recording.record_heads import NOT_CARRIED, collective_head, p2p_head
from ..safety.program_signals import pass_on
from ..schema.records import COLLECTIVE_CODES, DIRECTION_CODES, ROOT_MARK
from ..schema.terms import Direction
from .base import Capture
from .call_places import CallPlaces
from .group_making import GroupMaking
from .groups import Channel, Group, GroupTable
from .native_waits import NativeWaits
from .operators import NOT_COMMUNICATION, OPERATORS, Operator, with_root
from .pairs import PAIR_SIZES
from .tags import MessageTags
from .waits import PendingWorks, WaitHook

_NAMESPACE = "c10d"
_MOST_ROOTS = 64

_Returned = Callable[[Any, Any, int, int, int, bool, int, Any], None]
"""Takes arguments and result of a call, event id, issue time in ns, message size in bytes,
whether the host can see the end (it can for CPU tensors and where there is no tensor, as in
barriers), what the issue took in ns if this call is a sample of the hook's cost, else 0, and the begin
of the operation on the device if that was noted."""


class CollectiveHook:
    """Records the issue of every operation, and its end where the host sees it."""

    def __init__(
        self,
        capture: Capture,
        tags: MessageTags,
        before: CollectiveHook | None = None,
        first_seq: int = 0,
    ) -> None:
        """Prepare.

        Args:
            capture: Where records go.
            tags: Microbatches of messages.
            before: The hook that recorded until it was removed; its counting goes on.
            first_seq: Number of the first operation on any group and channel; 0 to count on.
        """
        self._before = before
        self._first_seq = first_seq
        self.source = capture.source("collectives")
        self.pending = PendingWorks(capture)
        self._capture = capture
        self._tags = tags
        self._library: Any = None
        self.groups: GroupTable | None = None
        self._waits: WaitHook | None = None
        self._native = NativeWaits(capture, self.source, self.pending)
        self._places: CallPlaces = CallPlaces(capture) if before is None else before._places
        self._making = GroupMaking(capture, self.source)
        self._is_hop_known = capture.meter.hop_ns > 0
        self._roots: set[int] = set()

    def install(self) -> None:
        """Put an implementation in front of every operator that communicates.

        Raises:
            UnsupportedError: This torch cannot redispatch; nothing is installed then.
        """
        self._unbox = process_group_class().unbox
        before = None if self._before is None else self._before.groups
        self.groups = self._groups = GroupTable(self._capture, self._unbox, before, self._first_seq)
        # Listing the operators of a namespace takes 4 ms: once, not at each window of steps.
        access = dispatcher() if self._before is None else self._before.access
        self._before = None
        self._unbox_work = work_class().unbox
        present = {
            name
            for name in access.operators(_NAMESPACE)
            if not access.has_keywords(_NAMESPACE, name)
        }
        self.access: Dispatcher = access
        self._library = access.library(_NAMESPACE)
        for operator in OPERATORS:
            if operator.name in present:
                make = self._collective if operator.kind else self._message
                kernel = make(operator, access)
                if operator.name in PAIR_SIZES:
                    kernel = self._with_pairs(operator, kernel)
                self._library.impl(operator.name, kernel, "BackendSelect", with_keyset=True)
        known = {operator.name for operator in OPERATORS} & present | NOT_COMMUNICATION
        if unseen := set(access.operators(_NAMESPACE)) - known:
            self._capture.recorder.annotate("collectives.unknown_operators", sorted(unseen))
        self._waits = WaitHook(self._capture, self.pending, access)
        self._waits.install()
        self._native.install()
        self._making.install(self.groups)

    def step_ended(self) -> None:
        """Give up old handles; once there is a group, measure what the dispatcher takes."""
        self.pending.step_ended()
        self._native.step_ended()
        if self._is_hop_known or self.groups is None:
            return
        process_group = self.groups.any_object()
        if process_group is None:
            return
        self._is_hop_known = True
        entered_ns = thread_cpu_ns()
        try:
            self._capture.meter.hop_ns = dispatcher_hop_ns(self.access, process_group)
        except Exception as error:  # noqa: BLE001 - the cost is then too low, and says so
            pass_on(error)
            self._capture.recorder.annotate("cost.hop_unknown", f"{type(error).__name__}: {error}")
        self._capture.meter.leave_out(thread_cpu_ns() - entered_ns, counts_once=True)

    def remove(self) -> None:
        """Take all implementations away again."""
        self.source.on = False
        self._making.remove()
        self._native.remove()
        if self._waits is not None:
            self._waits.remove()
            self._waits = None
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _collective(self, operator: Operator, access: Dispatcher) -> Any:  # noqa: C901 - calls cost
        """Return the kernel of a collective: note the issue, call on, look for the end."""
        redispatch = access.redispatch(_NAMESPACE, operator.name)
        onward, number_of, keys_after = access.onward.get, access.number_of, access.keys_after
        capture, source, unbox, groups = self._capture, self.source, self._unbox, self._groups
        group_of_object, meet = groups.by_object.get, groups.meet
        group_at, message_at, message = operator.group_at, operator.message_at, operator.message
        kind_code = COLLECTIVE_CODES[operator.kind]  # type: ignore[index]
        meet_call = self._meet_call
        rooted, returned = with_root(operator), self._returned(operator)
        aside, blocks, is_one = capture.aside, operator.blocks, operator.is_one
        add_cost = capture.meter.add

        def kernel(keyset: Any, *args: Any) -> Any:
            if not source.on:
                return redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)
            if aside and get_ident() in aside:
                capture.recorder.count("background_save_collectives")
                return redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)
            try:
                issue_ns = now_ns()
                process_group = unbox(args[group_at])
                group = group_of_object(id(process_group)) or meet(process_group)
                found: Any = message(args) if message_at is None else args[message_at]
                try:
                    (tensor,) = (found,) if is_one else found
                    size_bytes, dtype = tensor.nbytes, tensor.dtype
                except (ValueError, RuntimeError):
                    tensors = message(args)
                    tensor = tensors[0] if tensors else None
                    size_bytes, dtype = _size_bytes(tensors), _type_of(tensor)
                if rooted is not None:
                    size_bytes, dtype = rooted(args, group, size_bytes, dtype)
                heads, sizes = group.heads[kind_code], group.sizes[kind_code]
                head = (size_bytes in sizes and heads.get(dtype)) or meet_call(
                    group, kind_code, dtype, size_bytes
                )
                seq = group.seq
                group.seq = seq + 1
                event_id = capture.recorder.issue_collective(head, seq, size_bytes, issue_ns)
                on_host = tensor is None or tensor.is_cpu
                timer = None if on_host else capture.device_works
                begin = None if timer is None else timer.begin()
                taken_ns = 0 if event_id % ONE_IN else now_ns() - issue_ns
            except Exception as error:  # noqa: BLE001 - counted; training goes on
                source.failed(error)
                return redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)
            try:
                result = redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)
            except Exception:
                capture.recorder.count("communication_failed")
                raise
            if event_id >= 0:
                if on_host or blocks or timer is not None:
                    returned(args, result, event_id, issue_ns, size_bytes, on_host, taken_ns, begin)
                elif taken_ns:
                    add_cost("communication", taken_ns)
            return result

        return kernel

    def _with_pairs(self, operator: Operator, kernel: Any) -> Any:
        """Return the kernel of an all-to-all: note what each pair of members carries, call on."""
        sizes_of, group_at = PAIR_SIZES[operator.name], operator.group_at
        capture, source, groups = self._capture, self.source, self._groups

        def noting(keyset: Any, *args: Any) -> Any:
            if source.on and not (capture.aside and get_ident() in capture.aside):
                try:
                    group = groups.of(args[group_at])
                    sent, expected = sizes_of(args, group.size)
                    capture.recorder.pairs.note(group.code, group.seq, sent, expected)
                except Exception as error:  # noqa: BLE001 - counted; training goes on
                    source.failed(error)
            return kernel(keyset, *args)

        return noting

    def _message(self, operator: Operator, access: Dispatcher) -> Any:
        """Return the kernel of a send or receive."""
        redispatch = access.redispatch(_NAMESPACE, operator.name)
        onward, number_of, keys_after = access.onward.get, access.number_of, access.keys_after
        capture, source, unbox, groups = self._capture, self.source, self._unbox, self._groups
        group_of_object, meet = groups.by_object.get, groups.meet
        group_at, peer_at, message = operator.group_at, operator.peer_at, operator.message
        direction: Direction = operator.direction  # type: ignore[assignment]
        direction_code = DIRECTION_CODES[direction]
        meet_message, announced = self._meet_message, self._tags.announced
        take_tag = self._tags.take
        message_at, returned, aside = operator.message_at, self._returned(operator), capture.aside
        add_cost = capture.meter.add

        def kernel(keyset: Any, *args: Any) -> Any:
            if not source.on:
                return redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)
            if aside and get_ident() in aside:
                capture.recorder.count("background_save_collectives")
                return redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)
            try:
                issue_ns = now_ns()
                process_group = unbox(args[group_at])
                group = group_of_object(id(process_group)) or meet(process_group)
                tensors = message(args) if message_at is None else args[message_at]
                try:
                    (tensor,) = tensors
                    size_bytes, dtype = tensor.nbytes, tensor.dtype
                except (ValueError, RuntimeError):
                    tensor = tensors[0] if tensors else None
                    size_bytes, dtype = _size_bytes(tensors), _type_of(tensor)
                peer = -1 if peer_at is None else args[peer_at]
                channel = group.ends[direction_code].get(peer) or group.meet(direction, peer)
                head = (size_bytes in channel.sizes and channel.heads.get(dtype)) or meet_message(
                    channel, group.code, direction_code, dtype, size_bytes
                )
                seq = channel.seq
                channel.seq = seq + 1
                tag = take_tag(direction, tensors) if announced else NOT_CARRIED
                event_id = capture.recorder.issue_p2p(head, seq, size_bytes, issue_ns, tag)
                on_host = tensor is None or tensor.is_cpu
                timer = None if on_host else capture.device_works
                begin = None if timer is None else timer.begin()
                taken_ns = 0 if event_id % ONE_IN else now_ns() - issue_ns
            except Exception as error:  # noqa: BLE001 - counted; training goes on
                source.failed(error)
                return redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)
            try:
                result = redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)
            except Exception:
                capture.recorder.count("communication_failed")
                raise
            if event_id >= 0:
                if on_host or timer is not None:
                    returned(args, result, event_id, issue_ns, size_bytes, on_host, taken_ns, begin)
                elif taken_ns:
                    add_cost("communication", taken_ns)
            return result

        return kernel

    def _returned(self, operator: Operator) -> _Returned:
        """Return what looks for the end of an operation, or notes it if the call blocked.

        The handle is kept until the host waits for it. A wait on a device backend only orders
        streams, so it tells no end, and its handle would keep device memory alive. Barriers
        wait on the host.
        """
        capture, source, meter = self._capture, self.source, self._capture.meter
        add, unbox, outputs_at = self.pending.add, self._unbox_work, operator.outputs_at
        from_anyone = operator.direction is not None and operator.peer_at is None
        receives = operator.direction is Direction.RECV
        blocks, group_at, groups = operator.blocks, operator.group_at, self._groups

        def returned(  # noqa: PLR0913 - a tuple of them would cost
            args: Any,
            result: Any,
            event_id: int,
            issue_ns: int,
            size_bytes: int,
            on_host: bool,  # noqa: FBT001 - a keyword would cost
            taken_ns: int,
            begin: Any,
        ) -> None:
            try:
                begin_ns = now_ns() if taken_ns else 0
                boxed = result[-1] if type(result) is tuple else result
                if blocks:
                    end_ns = now_ns()
                    capture.recorder.complete(event_id, end_ns, issue_ns, end_ns)
                elif not on_host:
                    if capture.device_works is not None:
                        capture.device_works.issued(begin, boxed, event_id, receives=receives)
                elif boxed is not None and (work := unbox(boxed)) is not None:
                    outputs = () if outputs_at is None else args[outputs_at]
                    at_end = _count_sender(groups.of(args[group_at])) if from_anyone else None
                    add(work, event_id, size_bytes, outputs, at_end)
                if taken_ns:
                    meter.add("communication", taken_ns + now_ns() - begin_ns)
            except Exception as error:  # noqa: BLE001 - counted; training goes on
                source.failed(error)

        return returned

    def _meet_call(self, group: Group, kind: int, dtype: Any, size_bytes: int) -> bytes:
        """Return the head of a collective of a type or size that its group meets now; note where it is issued.

        The type of a rooted one is that and its root, which its record names with the type.
        """
        plain, root = dtype if type(dtype) is tuple else (dtype, None)
        head = collective_head(group.code, kind, self._dtype(plain, group, root))
        group.heads[kind][dtype] = head
        try:
            self._places.meet(group.sizes[kind], group.code, kind, _type_name(plain), size_bytes)
        except Exception as error:  # noqa: BLE001 - counted; the operation is recorded all the same
            self.source.failed(error)
        return head

    def _meet_message(
        self, channel: Channel, group: int, direction: int, dtype: Any, size_bytes: int
    ) -> bytes:
        """Return the head of a message of a type or size that its two ends meet now; note where it is issued."""
        peer = channel.peer
        head = channel.heads[dtype] = p2p_head(group, direction, peer, self._dtype(dtype))
        try:
            self._places.meet_message(
                channel.sizes, group, direction, peer, _type_name(dtype), size_bytes
            )
        except Exception as error:  # noqa: BLE001 - counted; the message is recorded all the same
            self.source.failed(error)
        return head

    def _dtype(self, dtype: Any, group: Group | None = None, root: Any = None) -> int:
        if dtype is None:
            return -1
        name = _type_name(dtype)
        at = -1 if group is None or root is None else group.global_rank(root)
        # Each new name is written to disk first: so many roots are noted, of others none.
        if at >= 0 and (at in self._roots or len(self._roots) < _MOST_ROOTS):
            self._roots.add(at)
            name = f"{name}{ROOT_MARK}{at}"
        return self._capture.recorder.register_dtype(name)


def _count_sender(group: Group) -> Callable[[Any], None]:
    """Return what counts a message from any sender among those of its sender.

    Otherwise the numbers of later messages from that sender would not match.
    """

    def count(work: Any) -> None:
        group.channel(Direction.RECV, group.global_rank(source_rank(work))).seq += 1

    return count


def _type_of(tensor: Any) -> Any:
    """Return the element type of a tensor; of a sparse one its name, because its size differs from rank to rank."""
    if tensor is None:
        return None
    return f"sparse_{tensor.dtype}".replace("torch.", "") if tensor.is_sparse else tensor.dtype


def _type_name(dtype: Any) -> str:
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def _size_bytes(tensors: list[Any]) -> int:
    size_bytes = 0
    for tensor in tensors:
        try:
            size_bytes += tensor.nbytes
        except RuntimeError:  # a sparse tensor has no storage of its own
            size_bytes += tensor._values().nbytes + tensor._indices().nbytes
    return size_bytes
