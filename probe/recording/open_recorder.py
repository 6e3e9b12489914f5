"""Opens the recorder of a rank: one for the time before the rank is known, and one that records nothing where that cannot be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .pair_notes import PairNotes
from .recorder import Recorder
from .writer import StorageSettings


class NullRecorder(Recorder):
    """A recorder that records nothing: hooks need not ask whether there is one.

    Attributes:
        reason: Why nothing is recorded; empty if that was asked for.
    """

    def __init__(self, rank: int = -1, *, reason: str = "") -> None:
        """Touch neither disk nor threads."""
        self.rank = rank
        self.step = -1
        self.directory = None
        self.pairs = PairNotes(None)
        self.reason = reason

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Store nothing."""

    def _no_index(self, *_: Any, **__: Any) -> int:
        """Store nothing; return an index or event id that stands for none."""
        return -1

    register_group = _no_index
    register_dtype = _no_index
    issue_collective = _no_index
    issue_p2p = _no_index
    record_step = _nothing
    record_span = _no_index
    record_device_time = _nothing
    complete = _nothing
    record_memory = _nothing
    record_microbatch = _nothing
    count = _nothing
    annotate = _nothing
    flush = _nothing
    keep_ring = _nothing
    wake = _nothing
    give_sign_of_life = _nothing
    publish = _nothing
    close = _nothing


def open_recorder(
    run_path: Path,
    rank: int,
    *,
    device_uuid: str | None = None,
    settings: StorageSettings | None = None,
    place: Mapping[str, int | None] | None = None,
) -> Recorder:
    """Return a recorder for a rank, or a NullRecorder with the reason why there is none."""
    try:
        return Recorder(run_path, rank, device_uuid=device_uuid, settings=settings, place=place)
    except OSError as error:
        return NullRecorder(rank, reason=f"{error.filename or run_path}: {error.strerror}")
    except RuntimeError as error:
        return NullRecorder(rank, reason=f"no thread for the writer: {error}")


_MOST = 4096
"""Later calls push out earlier ones, which are counted."""


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
