"""Where the host sees that a communication is over.

The handle of an operation (``Work``) is kept from its issue to its ``wait``,
because the binding layer hands out the same Python object only as long as one
reference to it lives, and that object is the only link between both. A handle
keeps the tensors of its operation alive. So handles are kept only where a
wait tells the end (on a CPU backend, and for barriers), in bounded number and
bytes, and never beyond the step after the one that issued them. What is given
up keeps an unknown end. Operations that C++ code waits for have theirs from ``native_waits``.

No completion callback is used: they run on backend threads, which must not have to wait for the
interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from ..clock import now_ns
from ..compat.torch_names import Dispatcher
from ..compat.works import work_class
from ..cost import ONE_IN
from .base import Capture, Patches

_NAMESPACE = "_c10d_functional"


NO_TIMEOUT = object()
"""Stands for a call that names none."""

PendingWork = tuple[Any, int, int, Any, int, Callable[[Any], None] | None]
"""Handle, event id, size in bytes, outputs (a tensor or several), step of the issue, and what to
call at the end. A plain tuple, because one is made for each call."""


class NativeCall(Protocol):
    """A call in progress whose C++ code may wait for what it issues.

    Attributes:
        step: In which it began.
    """

    step: int

    def issued(self, key: int, event_id: int) -> None:
        """Take an operation that was issued in it."""

    def let_go(self, key: int, pending: PendingWork) -> bool:
        """Take that an operation's handle is not held any more; return whether it was issued in it."""


class PendingWorks:
    """Operations whose end is still looked for, oldest first; any thread may issue and wait.

    Few jobs wait for outputs. So the addresses of these are noted from the first time on that
    one does.

    Attributes:
        by_work: They by the identity of their handle.
        met: Is told of each class of handles once.
        native: Calls in progress that wait in C++, by their thread.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._most = capture.config.max_pending_works
        self._most_bytes = capture.config.max_pending_bytes
        self.by_work: dict[int, PendingWork] = {}
        self._by_address: dict[int, int] | None = None
        self._addresses: dict[int, list[int]] = {}
        self._held_bytes = 0
        self._kinds: set[type] = set()
        self.met: Callable[[type], None] = lambda _: None
        self.native: dict[int, NativeCall] = {}

    def __len__(self) -> int:
        """Return how many handles are held."""
        return len(self.by_work)

    def add(
        self,
        work: Any,
        event_id: int,
        size_bytes: int,
        outputs: Any = (),
        at_end: Callable[[Any], None] | None = None,
    ) -> None:
        """Look for the end of an operation.

        Args:
            work: Its handle.
            event_id: Its record.
            size_bytes: What the handle may keep alive.
            outputs: Tensor or tensors whose wait is the end too.
            at_end: Called with the handle when the end was seen.
        """
        if type(work) not in self._kinds:
            self._kinds.add(type(work))
            self.met(type(work))
        key, step = id(work), self._capture.recorder.step
        self.by_work[key] = (work, event_id, size_bytes, outputs, step, at_end)
        if self._by_address is not None:
            self._note_addresses(key, outputs)
        self._held_bytes += size_bytes
        if self.native and (call := self.native.get(get_ident())) is not None:
            call.issued(key, event_id)
        if self._held_bytes > self._most_bytes or len(self.by_work) > self._most:
            self._give_up_oldest()

    def take(self, key: int) -> PendingWork | None:
        """Return the operation whose handle has an identity and forget it; None for another."""
        pending = self.by_work.pop(key, None)
        if pending is None:
            return None
        self._held_bytes -= pending[2]
        if self._addresses:
            self._forget_addresses(key)
        return pending

    def take_output(self, tensor: Any) -> PendingWork | None:
        """Return the operation whose output a tensor is and forget it, or None."""
        if self._by_address is None:
            self._by_address = {}
            for work, pending in list(self.by_work.items()):
                self._note_addresses(work, pending[3])
        if not self._by_address:
            return None
        try:
            key = self._by_address.get(tensor.data_ptr())
        except RuntimeError:
            # What torch.compile traces with has no memory: nothing was issued for it.
            return None
        return None if key is None else self.take(key)

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
        self._by_address = None
        self._addresses.clear()
        self._held_bytes = 0

    def _give_up_oldest(self) -> None:
        """Hold as much as is allowed; another thread may change what is held meanwhile."""
        while self._held_bytes > self._most_bytes or len(self.by_work) > self._most:
            try:
                oldest = next(iter(self.by_work), None)
            except RuntimeError:
                return
            if oldest is None:
                return
            self._give_up(oldest)

    def _give_up(self, key: int) -> None:
        pending = self.take(key)
        if pending is None:
            return
        for call in list(self.native.values()):
            if call.let_go(key, pending):
                return
        self._capture.recorder.count("communication_end_unseen")

    def _note_addresses(self, key: int, outputs: Any) -> None:
        tensors = outputs if isinstance(outputs, list | tuple) else (outputs,)
        addresses = self._addresses[key] = [tensor.data_ptr() for tensor in tensors]
        if self._by_address is not None:
            self._by_address.update(dict.fromkeys(addresses, key))

    def _forget_addresses(self, key: int) -> None:
        by_address = self._by_address
        for address in self._addresses.pop(key, ()):
            if by_address is not None and by_address.get(address) == key:
                by_address.pop(address, None)


class WaitHook:
    """Times ``Work.wait``, and the ``wait_tensor`` and ``wait_tensors`` of functional collectives."""

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
        present = self._access.operators(_NAMESPACE)
        kernels = {
            "wait_tensor": self._wait_tensor_kernel,
            "wait_tensors": self._wait_tensors_kernel,
        }
        self._library = self._access.library(_NAMESPACE)
        for name, kernel in kernels.items():
            if name in present:
                self._library.impl(name, kernel(), "BackendSelect", with_keyset=True)

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
        capture = self._capture
        looked_for = self._pending.by_work
        # A method of C++ is called faster without what binds it.
        call = getattr(original, "__func__", original)

        def wait(work: Any, timeout: Any = NO_TIMEOUT) -> Any:
            key = id(work)
            if key not in looked_for or not source.on:
                timer = capture.device_works
                begin = None if timer is None else timer.wait_begins(work)
                result = call(work) if timeout is NO_TIMEOUT else call(work, timeout)
                if begin is not None and timer is not None:
                    timer.wait_ended(begin)
                return result
            pending = take(key)
            start_ns = now_ns()
            try:
                result = call(work) if timeout is NO_TIMEOUT else call(work, timeout)
            except Exception:
                # A program that goes on after it works with what never arrived.
                capture.recorder.count("communication_failed")
                raise
            if pending is not None:
                completed(pending, start_ns)
            return result

        return wait

    def _wait_tensor_kernel(self) -> Any:
        redispatch = self._access.redispatch(_NAMESPACE, "wait_tensor")
        onward, number_of = self._access.onward.get, self._access.number_of
        keys_after = self._access.keys_after
        source, pending_of, completed = self.source, self._pending_of_output, self._completed

        def wait_tensor(keyset: Any, tensor: Any) -> Any:
            pending = pending_of(tensor) if source.on else None
            if pending is None:
                return redispatch(onward(number_of(keyset)) or keys_after(keyset), tensor)
            start_ns = now_ns()
            result = redispatch(onward(number_of(keyset)) or keys_after(keyset), tensor)
            completed(pending, start_ns)
            return result

        return wait_tensor

    def _wait_tensors_kernel(self) -> Any:
        """Return that of torch 2.15, which waits for all outputs of an operation at once."""
        redispatch = self._access.redispatch(_NAMESPACE, "wait_tensors")
        onward, number_of = self._access.onward.get, self._access.number_of
        keys_after = self._access.keys_after
        source, pending_of, completed = self.source, self._pending_of_output, self._completed

        def wait_tensors(keyset: Any, tensors: Any) -> Any:
            of_each = map(pending_of, tensors) if source.on else ()
            pending = [own for own in of_each if own is not None]
            start_ns = now_ns()
            result = redispatch(onward(number_of(keyset)) or keys_after(keyset), tensors)
            for own in pending:
                completed(own, start_ns)
            return result

        return wait_tensors

    def _pending_of_output(self, tensor: Any) -> PendingWork | None:
        try:
            return self._pending.take_output(tensor)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None

    def _completed(self, pending: PendingWork, start_ns: int) -> None:
        try:
            end_ns, event_id = now_ns(), pending[1]
            self._capture.recorder.complete(event_id, end_ns, start_ns, end_ns)
            if pending[5] is not None:
                pending[5](pending[0])
            if not event_id % ONE_IN:
                self._capture.meter.add("wait", now_ns() - end_ns)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
