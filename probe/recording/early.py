"""Records from before the rank is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .open_recorder import NullRecorder
from .recorder import Recorder

_MOST = 4096


class EarlyRecorder(NullRecorder):
    """Holds spans, microbatches, counts and facts back until there is a recorder to take them.

    Operations of process groups cannot come before the rank is known, and an
    optimizer opens the recorder before its memory samples and step are
    recorded; none of these is held back here.

    Attributes:
        has_spans: True once there is something worth a capture of its own.
    """

    def __init__(self) -> None:
        super().__init__(reason="the rank is not known yet")
        self.step = 0
        self._held: deque[Callable[[Recorder], object]] = deque(maxlen=_MOST)
        self._pushed_out = 0
        self.has_spans = False

    def record_span(
        self, head: bytes, start_ns: int, dur_ns: int, cpu_ns: int, microbatch: int = -1
    ) -> int:
        """Hold a span back; it has no event id yet."""
        self.has_spans = True
        values = (head, start_ns, dur_ns, cpu_ns, microbatch)
        self._hold(lambda recorder: recorder.record_span(*values))
        return -1

    def record_microbatch(self, microbatch: int, tokens: int, sum_sq: int) -> None:
        """Hold what was reported of a microbatch back."""
        self._hold(lambda recorder: recorder.record_microbatch(microbatch, tokens, sum_sq))

    def count(self, name: str, amount: int = 1) -> None:
        """Hold a count back."""
        self._hold(lambda recorder: recorder.count(name, amount))

    def annotate(self, key: str, value: Any) -> None:
        """Hold a fact back."""
        self._hold(lambda recorder: recorder.annotate(key, value))

    def release(self, recorder: Recorder) -> None:
        """Hand everything to the recorder, oldest first."""
        recorder.step = self.step
        while self._held:
            self._held.popleft()(recorder)
        if self._pushed_out:
            recorder.count("early_records_dropped", self._pushed_out)

    def _hold(self, record: Callable[[Recorder], object]) -> None:
        if len(self._held) == _MOST:
            self._pushed_out += 1
        self._held.append(record)
