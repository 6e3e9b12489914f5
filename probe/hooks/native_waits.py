"""Operations that C++ code of torch issues and waits for itself, where Python sees neither.

The reducer of DistributedDataParallel issues the reduction of each bucket of gradients as the
backward fills it, and waits for all of them before the call of the backward returns. Its
broadcast of buffers does the same within one call. On a backend that the host waits for, such a
call returns when the operations are complete: that is their end, and from the issue of the last
of them to there the host waited.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from sys import getrefcount
from typing import Any, Final

from ..clock import now_ns
from ..compat import UnsupportedError
from ..compat_works import calls_that_wait, functional_works, is_over
from ..cost import ONE_IN
from .base import Capture, Patches, Source
from .waits import PendingWork, PendingWorks

_HANDLE: Final = 0
_EVENT_ID: Final = 1
_ISSUE_NS: Final = 6
"""Places in a ``PendingWork``."""
_ONLY_OURS = 2
"""References to a handle that nobody else in Python holds: the table's and that of the question."""


class NativeWaits:
    """Notes the ends of operations at the return of the call that waits for them.

    Those whose handle the training code holds it waits for itself, maybe later. The same goes for
    functional collectives, whose handles C++ keeps: while there are any, nothing is noted.
    """

    def __init__(self, capture: Capture, source: Source, pending: PendingWorks) -> None:
        self._capture = capture
        self._source = source
        self._pending = pending
        self._patches = Patches(source)
        self._functional: Callable[[], int] = lambda: 0
        self._begin_ns = 0
        self._let_go: list[int] = []

    def install(self) -> None:
        """Wrap the calls that wait; those of backwards tell of themselves."""
        try:
            self._functional = functional_works()
        except UnsupportedError as reason:
            self._capture.recorder.annotate("native_waits.missing", str(reason))
            return
        self._capture.native_waits = self
        self._pending.gave_up = self._gave_up
        for owner, name in calls_that_wait():
            self._patches.replace(owner, name, self._wrap)

    def remove(self) -> None:
        """Restore what was wrapped."""
        self._capture.native_waits = None
        self._patches.restore()

    def begin(self) -> bool:
        """Note that a call begins which may wait; tell whether it is not inside of another."""
        if self._begin_ns:
            return False
        self._begin_ns = now_ns()
        return True

    def returned(self) -> None:
        """Note that the call which began is over: so are the operations that were issued in it."""
        try:
            if self._pending.by_work or self._let_go:
                self._complete()
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)
        finally:
            self.failed()

    def failed(self) -> None:
        """Note that the call which began has raised: nobody knows what it has waited for."""
        self._begin_ns = 0
        self._let_go.clear()

    def _complete(self) -> None:
        end_ns, complete = now_ns(), self._capture.recorder.complete
        if self._functional():
            return
        # A list of all is made in one go, whatever other threads add meanwhile.
        held = list(self._pending.by_work.items())
        own = [(key, work) for key, work in held if self._is_own(work) and is_over(work[_HANDLE])]
        last_ns = max((work[_ISSUE_NS] for _, work in own), default=0)
        for key, work in own:
            if self._pending.take(key) is not None:
                from_ns = work[_ISSUE_NS] if work[_ISSUE_NS] == last_ns else end_ns
                complete(work[_EVENT_ID], end_ns, from_ns, end_ns)
        for event_id in self._let_go:
            complete(event_id, end_ns, end_ns, end_ns)
        sampled = sum(work[_EVENT_ID] % ONE_IN == 0 for _, work in own)
        for _ in range(sampled):
            self._capture.meter.add("wait", (now_ns() - end_ns) // len(own))

    def _is_own(self, work: PendingWork) -> bool:
        return work[_ISSUE_NS] >= self._begin_ns and getrefcount(work[_HANDLE]) <= _ONLY_OURS

    def _gave_up(self, work: PendingWork) -> bool:
        """Remember an operation whose handle was let go, if its end will be known; tell whether."""
        if not self._begin_ns or not self._is_own(work):
            return False
        self._let_go.append(work[_EVENT_ID])
        return True

    def _wrap(self, original: Any) -> Any:
        return wraps(original)(telling_waits(original, self._capture))


def telling_waits(original: Any, capture: Capture) -> Any:
    """Return what is called in place of something whose C++ code may wait for communication."""

    def call(*args: Any, **kwargs: Any) -> Any:
        waits = capture.native_waits
        if waits is None or not waits.begin():
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            waits.failed()
            raise
        waits.returned()
        return result

    return call
