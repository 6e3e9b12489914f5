"""The background writer: moves records from the ring into segment files.

It wakes twice a second and drains what is new; numpy and Arrow work on whole
batches, mostly without the interpreter lock. The ring already keeps the newest
records safe, so a small batch may wait a few seconds for company. Nothing here
is raised into training: failures are counted in the rank manifest.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..clock import now_ns
from ..safety.threads import Bell
from ..schema.errors import ConfigError
from ..schema.message import message
from ..schema.record_payloads import encode_records
from ..schema.records import DRAINED_RECORD
from ..schema.ring import SLOT_BYTES, split_records
from .rank_manifest import RankManifest
from .ring import RingDrain, RingWriter
from .ring_copy import RingCopy
from .segment_series import SegmentSeries, SeriesBounds
from .step_sums import FULL_RECORDS, Fold, FullRecords, joined

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = dict[str, NDArray[np.void]]

_NS_PER_S = 1_000_000_000
_LOCK_TIMEOUT_S = 5.0
"""On a file system that hangs the caller goes on, and it is counted."""
_LOOK_S = 0.5
"""How late a caller learns that the writer has died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """How much a rank stores, and how often."""

    slot_count: int = 65536
    """Slots of the ring, a power of two; 128 bytes each."""
    wake_s: float = 0.5
    """Time between two looks at the ring."""
    batch_records: int = 8192
    """Records that are worth a block of their own."""
    batch_s: float = 30.0
    """Longest time for which fewer records wait."""
    segment_bytes: int = 16 << 20
    """A segment is closed at this size …"""
    segment_s: float = 60.0
    """… or at this age."""
    max_bytes: int = 256 << 20
    """Bound of the rank's ring and segments; the oldest but the first are dropped."""
    free_floor_frac: float = 0.05
    """No segment is written while the file system has less free space than this share."""
    full_records: FullRecords = field(default_factory=FullRecords)
    """Steps of which every communication record is written; of the others sums are."""
    each_wake: Callable[[], None] = field(default=lambda: None)
    """Called by the writer's thread each time that it has looked at the ring, and at the end."""

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ConfigError: The number of slots is no power of two, or a bound cannot hold.
        """
        if self.slot_count < 64 or self.slot_count & (self.slot_count - 1):
            raise ConfigError(
                message("refused.no_power_of_two", slot_count=self.slot_count),
                where="storage.slot_count",
            )
        if self.max_bytes < self.slot_count * SLOT_BYTES + 2 * self.segment_bytes:
            raise ConfigError(
                message("refused.room_for_segments"),
                where="storage.max_bytes",
                remedy=message("advice.raise_max_bytes"),
            )
        if not 0 <= self.free_floor_frac < 1:
            raise ConfigError(
                message("refused.not_from_0_below_1"), where="storage.free_floor_frac"
            )

    @property
    def segment_bounds(self) -> SeriesBounds:
        """What is left for segments beside the ring."""
        return SeriesBounds(
            segment_bytes=self.segment_bytes,
            segment_s=self.segment_s,
            max_bytes=self.max_bytes - self.slot_count * SLOT_BYTES,
            free_floor_frac=self.free_floor_frac,
        )


class SegmentWriter(threading.Thread):
    """The daemon thread of one rank, and the segments that it wrote."""

    def __init__(
        self, directory: Path, ring: RingWriter, manifest: RankManifest, settings: StorageSettings
    ) -> None:
        """Prepare; ``start`` begins the work.

        Raises:
            OSError: The directory cannot be listed.
        """
        super().__init__(name="meshscope-writer", daemon=True)
        self._manifest = manifest
        self._settings = settings
        self._ring = ring
        self._drain = RingDrain(ring)
        self._copy = None if ring.is_mapped else RingCopy(directory, ring)
        self._fold = Fold(settings.full_records)
        if not settings.full_records.are_all:
            manifest.annotate(FULL_RECORDS, asdict(settings.full_records))
        self._batch_records = min(settings.batch_records, settings.slot_count // 4)
        self._ended = threading.Event()
        self._bell = Bell()
        self._asked: deque[threading.Event] = deque()
        self._is_over = False
        self._drain_lock = threading.Lock()
        self._series = SegmentSeries(
            directory,
            manifest.rank,
            settings.segment_bounds,
            manifest.count,
            manifest.sample_clocks,
        )
        self._drained_ns = now_ns()

    def run(self) -> None:
        """Drain the ring until ``finish``."""
        self._ring.give_sign_of_life(now_ns())
        self._attempt(_load_arrow)
        while True:
            self._bell.wait(self._settings.wake_s)
            if self._ended.is_set():
                break
            self._attempt(self._keep_asked)
            self._attempt(self._wake)
            self._attempt(self._settings.each_wake)
        self._end()
        for done in self._asked:
            done.set()

    def wake(self) -> None:
        """Have the thread look at the ring now, and call ``each_wake``; any thread."""
        self._bell.ring()

    def flush(self) -> None:
        """Write all records that are in the ring now, from any thread."""
        self._attempt(lambda: self._drain_ring(final=False))
        self._manifest.write()

    def finish(self, timeout_s: float) -> bool:
        """Have the thread write the rest, close the last segment, mark the capture as complete.

        Returns:
            False if the thread did not end in time (a file system hangs); the
            rest is then left in the ring.
        """
        self._ended.set()
        self._bell.ring()
        if not self.is_alive():
            if not self._is_over:
                self._end()
            return True
        self.join(timeout_s)
        return not self.is_alive()

    def _end(self) -> None:
        self._is_over = True
        self._attempt(lambda: self._drain_ring(final=True))
        self._attempt(self._settings.each_wake)
        self._attempt(self._copy_ring)
        self._manifest.write_closed()
        self._drain.release()
        if self._copy is not None:
            self._copy.release()

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - whatever it is, training goes on without it
            self._manifest.count("writer_errors", 1)

    def _wake(self) -> None:
        self._ring.give_sign_of_life(now_ns())
        self._manifest.watch_clocks()
        self._copy_ring()
        self._manifest.write_due()
        waited_ns = now_ns() - self._drained_ns
        due = waited_ns >= self._settings.batch_s * _NS_PER_S
        if due or self._drain.has(self._batch_records):
            self.flush()

    def _copy_ring(self) -> None:
        """Bring the ring to its file, where it is not mapped from there."""
        if self._copy is None:
            return
        try:
            # Names that the copied records refer to are in the manifest before them.
            changes = self._copy.changes()
            self._manifest.write_due()
            self._copy.store(changes)
        except OSError:
            self._manifest.count("ring_copy_errors", 1)

    def _drain_ring(self, *, final: bool) -> None:
        """Write what is new in the ring.

        Args:
            final: No more records follow: do not wait for unfinished ones, and
                close the segment.
        """
        # Bounded, as a signal handler may flush in the middle of a flush.
        if not self._drain_lock.acquire(timeout=_LOCK_TIMEOUT_S):
            self._manifest.count("writer_errors", 1)
            return
        try:
            self._drained_ns = now_ns()
            rows: Rows = {}
            while (slots := self._drain.collect(final=final)) is not None:
                joined(rows, self._folded(slots))
                if sum(map(len, rows.values())) >= self._batch_records:
                    # One block of a whole ring would take several times its memory.
                    self._append(rows)
                    rows = {}
            if final:
                joined(rows, self._fold.finish())
            self._append(rows)
            for name, amount in self._drain.take_losses().items():
                self._manifest.count(name, amount)
            if final:
                self._series.close()
            else:
                # One that gets no more records closes when it is old.
                self._series.rotate()
        finally:
            self._drain_lock.release()

    def keep_ring(self, timeout_s: float) -> None:
        """Have the thread write every record that the ring still holds, those of sums too.

        Args:
            timeout_s: How long the caller waits for it. A longer one is counted, and done.
        """
        if not self.is_alive() or threading.current_thread() is self:
            self._keep_ring()
            return
        done = threading.Event()
        self._asked.append(done)
        self._bell.ring()
        last_ns = now_ns() + int(timeout_s * _NS_PER_S)
        while not done.wait(min(timeout_s, _LOOK_S)) and self.is_alive():
            if now_ns() >= last_ns:
                self._manifest.count("flush_timeouts", 1)
                return

    def _keep_asked(self) -> None:
        """Do what was asked for by now, once, and tell who has asked."""
        if not self._asked:
            return
        asked = [self._asked.popleft() for _ in range(len(self._asked))]
        try:
            self._keep_ring()
        finally:
            for done in asked:
                done.set()

    def _keep_ring(self) -> None:
        self.flush()
        self._attempt(self._append_ring)
        self._manifest.write()

    def _append_ring(self) -> None:
        if not self._drain_lock.acquire(timeout=_LOCK_TIMEOUT_S):
            self._manifest.count("writer_errors", 1)
            return
        try:
            for slots in self._drain.held():
                self._append(split_records(slots))
        finally:
            self._drain_lock.release()

    def _folded(self, slots: NDArray[np.void]) -> Rows:
        """Return drained records as they are to be written: in full or as sums."""
        rows: Rows = split_records(slots)
        try:
            rows = self._fold.take(rows)
        except Exception:  # noqa: BLE001 - then everything is written as it is
            self._manifest.count("fold_errors", 1)
            self._fold = Fold(FullRecords())
        if self._fold.kept_out:
            rows[DRAINED_RECORD.name] = _drained(slots, self._fold.kept_out)
            self._fold.kept_out = 0
        if self._fold.too_late:
            self._manifest.count("late_ends_dropped", self._fold.too_late)
            self._fold.too_late = 0
        return rows

    def _append(self, rows: Rows) -> None:
        """Write records as one block."""
        if count := sum(map(len, rows.values())):
            self._series.append(encode_records(rows), count)


def _drained(slots: NDArray[np.void], kept_out: int) -> NDArray[np.void]:
    """Return the record of how many of a run of slots were not written themselves."""
    import numpy as np

    first, last = int(slots["slot_seq"][0]), int(slots["slot_seq"][-1])
    return np.array(
        [(DRAINED_RECORD.code, first, last + 1, kept_out)], DRAINED_RECORD.numpy_dtype()
    )


def _load_arrow() -> None:
    """Import Arrow while the job starts up, not in the middle of a later step."""
    import nanoarrow.ipc as _  # noqa: F401
