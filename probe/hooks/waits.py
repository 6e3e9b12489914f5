"""Where the host sees that a communication is over.

The handle of an operation (``Work``) is kept from its issue to its ``wait``,
because the binding layer hands out the same Python object only as long as one
reference to it lives, and that object is the only link between both. A handle
keeps the tensors of its operation alive. So handles are kept only where a
wait tells the end (on a CPU backend, and for barriers), in bounded number and
bytes, and never beyond the step after the one that issued them. What is given
up keeps an unknown end; so do operations that C++ code waits for (the reducer
of DistributedDataParallel).

No completion callback and no future is used: they run on backend threads,
which must not have to wait for the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..clock import now_ns
from ..compat import Dispatcher, work_class
from ..cost import ONE_IN
from .base import Capture, Patches

_NAMESPACE = "_c10d_functional"


NO_TIMEOUT = object()
"""Stands for a call that names none."""

_Pending = tuple[Any, int, int, tuple[int, ...], int, Callable[[Any], None] | None]
"""Handle, event id, size in bytes, addresses of the outputs, step of the issue,
and what to call at the end. A plain tuple, because one is made for each call."""


class PendingWorks:
    """Operations whose end is still looked for, oldest first; any thread may issue and wait.

    Attributes:
        by_work: They by the identity of their handle.
        met: Is told of each class of handles once.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._most = capture.config.max_pending_works
        self._most_bytes = capture.config.max_pending_bytes
        self.by_work: dict[int, _Pending] = {}
        self._by_address: dict[int, int] = {}
        self._held_bytes = 0
        self._kinds: set[type] = set()
        self.met: Callable[[type], None] = lambda _: None

    def __len__(self) -> int:
        """Return how many handles are held."""
        return len(self.by_work)

    def add(
        self,
        work: Any,
        event_id: int,
        size_bytes: int,
        outputs: Sequence[Any],
        at_end: Callable[[Any], None] | None = None,
    ) -> None:
        """Look for the end of an operation.

        Args:
            work: Its handle.
            event_id: Its record.
            size_bytes: What the handle may keep alive.
            outputs: Tensors whose wait is the end too.
            at_end: Called with the handle when the end was seen.
        """
        if type(work) not in self._kinds:
            self._kinds.add(type(work))
            self.met(type(work))
        key = id(work)
        addresses = tuple([tensor.data_ptr() for tensor in outputs])
        step = self._capture.recorder.step
        self.by_work[key] = (work, event_id, size_bytes, addresses, step, at_end)
        for address in addresses:
            self._by_address[address] = key
        self._held_bytes += size_bytes
        while self._held_bytes > self._most_bytes or len(self.by_work) > self._most:
            oldest = self._oldest()
            if oldest is None:
                break
            self._give_up(oldest)

    def take(self, work: Any) -> _Pending | None:
        """Return the operation of a handle and forget it; None for an unknown one."""
        return self._forget(id(work))

    def take_output(self, tensor: Any) -> _Pending | None:
        """Return the operation whose output a tensor is and forget it, or None."""
        if not self._by_address:
            return None
        try:
            key = self._by_address.get(tensor.data_ptr())
        except RuntimeError:
            # What torch.compile traces with has no memory: nothing was issued for it.
            return None
        return None if key is None else self._forget(key)

    def step_ended(self) -> None:
        """Give up what was issued before the step that has just ended."""
        oldest = self._capture.recorder.step - 1
        # A list of the keys is made in one go, whatever other threads add meanwhile.
        for key in list(self.by_work):
            pending = self.by_work.get(key)
            if pending is not None and pending[4] < oldest:
                self._give_up(key)

    def clear(self) -> None:
        """Give up everything."""
        if self.by_work:
            self._capture.recorder.count("communication_end_unseen", len(self.by_work))
        self.by_work.clear()
        self._by_address.clear()
        self._held_bytes = 0

    def _oldest(self) -> int | None:
        """Return the oldest; None if there is none, or another thread changes them right now."""
        try:
            return next(iter(self.by_work), None)
        except RuntimeError:
            return None

    def _give_up(self, key: int) -> None:
        if self._forget(key) is not None:
            self._capture.recorder.count("communication_end_unseen")

    def _forget(self, key: int) -> _Pending | None:
        pending = self.by_work.pop(key, None)
        if pending is None:
            return None
        self._held_bytes -= pending[2]
        by_address = self._by_address
        for address in pending[3]:
            if by_address.get(address) == key:
                by_address.pop(address, None)
        return pending


class WaitHook:
    """Times ``Work.wait`` and the ``wait_tensor`` of functional collectives."""

    def __init__(self, capture: Capture, pending: PendingWorks, access: Dispatcher) -> None:
        self.source = capture.source("waits")
        self._capture = capture
        self._pending = pending
        self._access = access
        self._patches = Patches(self.source)
        self._watched: set[type] = set()
        self._library: Any = None

    def install(self) -> None:
        """Wrap both waits.

        Raises:
            UnsupportedError: The handle class is missing.
        """
        base = work_class()
        for handle in (base, *base.__subclasses__()):
            self._watch(handle)
        # A class of handles may be made later, as by code that stages or delays operations.
        self._pending.met = self._watch
        if "wait_tensor" in self._access.operators(_NAMESPACE):
            self._library = self._access.library(_NAMESPACE)
            self._library.impl(
                "wait_tensor", self._wait_tensor_kernel(), "BackendSelect", with_keyset=True
            )

    def remove(self) -> None:
        """Restore both waits and let go of all handles."""
        self.source.on = False
        self._pending.met = lambda _: None
        if self._library is not None:
            self._library._destroy()
            self._library = None
        self._patches.restore()
        self._watched.clear()
        self._pending.clear()

    def _watch(self, handle: type) -> None:
        """Time the waits of a class of handles, if they are its own."""
        if "wait" in vars(handle) and handle not in self._watched:
            self._watched.add(handle)
            self._patches.replace(handle, "wait", self._wrap_wait)

    def _wrap_wait(self, original: Any) -> Any:
        source, take, completed = self.source, self._pending.take, self._completed
        looked_for = self._pending.by_work

        def wait(work: Any, timeout: Any = NO_TIMEOUT) -> Any:
            if id(work) not in looked_for or not source.on:
                return original(work) if timeout is NO_TIMEOUT else original(work, timeout)
            pending = take(work)
            start_ns = now_ns()
            result = original(work) if timeout is NO_TIMEOUT else original(work, timeout)
            if pending is not None:
                completed(pending, start_ns)
            return result

        return wait

    def _wait_tensor_kernel(self) -> Any:
        redispatch = self._access.redispatch(_NAMESPACE, "wait_tensor")
        onward, keys_after = self._access.onward.get, self._access.keys_after
        source, pending_of, completed = self.source, self._pending_of_output, self._completed

        def wait_tensor(keyset: Any, tensor: Any) -> Any:
            pending = pending_of(tensor) if source.on else None
            if pending is None:
                return redispatch(onward(keyset.raw_repr()) or keys_after(keyset), tensor)
            start_ns = now_ns()
            result = redispatch(onward(keyset.raw_repr()) or keys_after(keyset), tensor)
            completed(pending, start_ns)
            return result

        return wait_tensor

    def _pending_of_output(self, tensor: Any) -> _Pending | None:
        try:
            return self._pending.take_output(tensor)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None

    def _completed(self, pending: _Pending, start_ns: int) -> None:
        try:
            end_ns = now_ns()
            work, event_id, _, _, _, at_end = pending
            self._capture.recorder.complete(event_id, end_ns, start_ns, end_ns)
            if at_end is not None:
                at_end(work)
            if not event_id % ONE_IN:
                self._capture.meter.add("wait", now_ns() - end_ns)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
