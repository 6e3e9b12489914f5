"""Operations that C++ code of torch issues and waits for itself, where Python sees neither.

The reducer of DistributedDataParallel issues the reduction of each bucket of gradients as the
backward fills it. When the whole backward is computed, callbacks of autograd run in the order in
which they were queued; that of the reducer waits for its buckets. One of ours is queued at the
first issue, before it: from there to the return of the backward the host waited, and at the return
all of them are complete. The broadcast of buffers issues and waits within one call likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from sys import getrefcount
from threading import get_ident
from typing import Any

from ..clock import now_ns
from ..compat.absent import UnsupportedError
from ..compat.works import calls_that_wait, functional_works, is_over, when_computed
from ..cost import ONE_IN
from ..schema.message import message_to_json
from .base import Capture, Patches, Source
from .waits import PendingWork, PendingWorks

_ONLY_OURS = 2
"""References to a handle that nobody else in Python holds: the table's and that of the question."""


class _Call:
    """A call in progress, and what was issued in it on its thread.

    Attributes:
        events: Event ids by the identity of their handles, in the order of their issue.
        gone: Event ids of those whose handles were let go.
        over: When it was seen that they are complete, by the identity of their handles.
        alone_ns: From when on there was nothing left to do but to wait.
    """

    def __init__(self, source: Source, pending: PendingWorks, step: int, outstanding: int) -> None:
        self.step = step
        self.outstanding = outstanding
        self.events: dict[int, int] = {}
        self.gone: list[int] = []
        self.over: dict[int, int] = {}
        self.alone_ns = 0
        self._source = source
        self._by_work = pending.by_work
        self._is_queued = False

    def issued(self, key: int, event_id: int) -> None:
        """Take an operation that was issued in it, and ask to be told when all is computed."""
        self.alone_ns = now_ns()
        self.events.pop(key, None)
        self.events[key] = event_id
        if not self._is_queued:
            self._is_queued = when_computed(self._computed)

    def let_go(self, key: int, pending: PendingWork) -> bool:
        """Take that an operation's handle is not held any more; return whether it was issued in it."""
        if self.events.get(key) != pending[1] or getrefcount(pending[0]) > _ONLY_OURS:
            return False
        del self.events[key]
        self.gone.append(pending[1])
        return True

    def held(self) -> dict[int, PendingWork]:
        """Return the operations whose ends are still looked for, by the identity of their handles."""
        found = {key: self._by_work.get(key) for key in self.events}
        return {
            key: work
            for key, work in found.items()
            if work is not None and work[1] == self.events[key]
        }

    def _computed(self) -> None:
        try:
            self._is_queued = False
            self.alone_ns = now_ns()
            for key, work in self.held().items():
                if is_over(work[0]):
                    self.over.setdefault(key, self.alone_ns)
        except Exception as error:  # noqa: BLE001 - counted; training goes on, which called this
            self._source.failed(error)


def _is_done(work: PendingWork) -> bool:
    """Tell whether an operation is complete that nobody in Python can wait for any more."""
    return getrefcount(work[0]) <= _ONLY_OURS and is_over(work[0])


class NativeWaits:
    """Notes the ends of operations at the return of the call that waits for them.

    Those whose handle the training code holds it waits for itself, maybe later. The same goes for
    functional collectives, whose handles C++ keeps: where a call leaves one, nothing is noted.
    """

    def __init__(self, capture: Capture, source: Source, pending: PendingWorks) -> None:
        self._capture = capture
        self._source = source
        self._pending = pending
        self._patches = Patches(source)
        self._outstanding: Callable[[], int] = lambda: 0

    def install(self) -> None:
        """Wrap the calls that wait; backwards are wrapped with their spans."""
        try:
            self._outstanding = functional_works()
        except UnsupportedError as error:
            self._capture.recorder.annotate("native_waits.missing", message_to_json(error.reason))
            return
        self._capture.native_waits = self.around
        for owner, name in calls_that_wait():
            self._patches.replace(owner, name, self._wrap)

    def remove(self) -> None:
        """Restore what was wrapped."""
        self._capture.native_waits = None
        self._patches.restore()
        self._pending.native.clear()

    def step_ended(self) -> None:
        """Forget calls that seem to go on since another step: a signal handler ended them."""
        for thread, call in list(self._pending.native.items()):
            if call.step < self._capture.recorder.step - 1:
                self._pending.native.pop(thread, None)

    def around(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call, and note what it has waited for; one inside of another belongs to that."""
        calls, thread = self._pending.native, get_ident()
        own = None if thread in calls or not self._source.on else self._begun()
        if own is None:
            return original(*args, **kwargs)
        try:
            calls[thread] = own
            result = original(*args, **kwargs)
            if own.events or own.gone:
                self._safely(self._complete, own)
            return result
        except BaseException:
            self._safely(self._lose, own)
            raise
        finally:
            if calls.get(thread) is own:
                calls.pop(thread, None)  # Another thread may have removed all of them meanwhile.

    def _begun(self) -> _Call | None:
        try:
            step = self._capture.recorder.step
            return _Call(self._source, self._pending, step, self._outstanding())
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)
            return None

    def _safely(self, note: Callable[[_Call], None], call: _Call) -> None:
        try:
            note(call)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)

    def _lose(self, call: _Call) -> None:
        if call.gone:
            self._capture.recorder.count("communication_end_unseen", len(call.gone))
            call.gone.clear()

    def _complete(self, call: _Call) -> None:
        end_ns, recorder = now_ns(), self._capture.recorder
        is_known = self._outstanding() <= call.outstanding
        own = {key: work for key, work in call.held().items() if is_known and _is_done(work)}
        if next(reversed(call.events), None) not in own:
            # Nobody can be asked of those that were let go: they are over if the last one is.
            self._lose(call)
        waited = [key for key in own if key not in call.over]
        for key, work in own.items():
            if self._pending.take(key) is not None:
                over_ns = call.over.get(key, end_ns)
                is_last = bool(waited) and key == waited[-1]
                recorder.complete(work[1], over_ns, call.alone_ns if is_last else over_ns, over_ns)
        for event_id in call.gone:
            recorder.complete(event_id, end_ns, end_ns, end_ns)
        for _ in range(sum(work[1] % ONE_IN == 0 for work in own.values())):
            self._capture.meter.add("wait", (now_ns() - end_ns) // len(own))

    def _wrap(self, original: Any) -> Any:
        around = self.around

        @wraps(original)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            return around(original, args, kwargs)

        return waiting
