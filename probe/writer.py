"""The background writer: moves records from the ring into segment files.

It wakes twice a second and drains what is new; numpy and Arrow work on whole
batches, mostly without the interpreter lock. The ring already keeps the newest
records safe, so a small batch may wait a few seconds for company. Nothing here
is raised into training: failures are counted in the rank manifest.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .clock import now_ns
from .drain import RingDrain
from .fold import Fold, joined
from .full_records import FULL_RECORDS, FullRecords
from .rank_manifest import RankManifest
from .ring import RingWriter
from .ring_copy import RingCopy
from .schema.errors import ConfigError
from .schema.records import DRAINED_RECORD
from .schema.ring import SLOT_BYTES, split_records
from .schema.segment import SegmentFile, encode_records

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = dict[str, NDArray[np.void]]

_NS_PER_S = 1_000_000_000
_LOCK_TIMEOUT_S = 5.0


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
                f"{self.slot_count} is not a power of two from 64", where="storage.slot_count"
            )
        if self.max_bytes < self.slot_count * SLOT_BYTES + 2 * self.segment_bytes:
            raise ConfigError(
                "must hold the ring and two segments",
                where="storage.max_bytes",
                remedy="Raise it, or lower slot_count or segment_bytes",
            )
        if not 0 <= self.free_floor_frac < 1:
            raise ConfigError("must be from 0 to below 1", where="storage.free_floor_frac")


class _StoredSegment(NamedTuple):
    path: Path
    size_bytes: int
    records: int


class SegmentWriter(threading.Thread):
    """The daemon thread of one rank, and the segments that it wrote."""

    def __init__(
        self, directory: Path, ring: RingWriter, manifest: RankManifest, settings: StorageSettings
    ) -> None:
        """Prepare; ``start`` begins the work."""
        super().__init__(name="meshscope-writer", daemon=True)
        self._directory = directory
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
        self._is_over = False
        self._drain_lock = threading.Lock()
        self._segment: SegmentFile | None = None
        self._segment_number = 0
        self._segment_records = 0
        self._segment_opened_ns = 0
        self._stored: deque[_StoredSegment] = deque()
        self._drained_ns = now_ns()

    def run(self) -> None:
        """Drain the ring until ``finish``."""
        self._ring.give_sign_of_life(now_ns())
        self._attempt(_load_arrow)
        while not self._ended.wait(self._settings.wake_s):
            self._attempt(self._wake)
            self._attempt(self._settings.each_wake)
        self._end()

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
        self._copy_ring()
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
            self._rotate(final=final)
        finally:
            self._drain_lock.release()

    def keep_ring(self) -> None:
        """Write every record that the ring still holds, those of sums too, from any thread."""
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
            self._rotate(final=False)
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
        count = sum(map(len, rows.values()))
        if not count:
            return
        if not self._has_free_space():
            self._manifest.count("disk_floor_dropped", count)
            return
        try:
            self._open_segment().append(encode_records(rows))
            self._segment_records += count
        except OSError:
            # The file may end in a torn block, so the next batch starts a new one.
            self._manifest.count("segment_write_errors", 1)
            self._manifest.count("segment_write_dropped", count)
            if self._segment is not None:
                self._segment.abandon()
                self._put_away(self._segment)

    def _has_free_space(self) -> bool:
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return False
        return disk.f_bavail >= disk.f_blocks * self._settings.free_floor_frac

    def _open_segment(self) -> SegmentFile:
        if self._segment is None:
            self._segment_number += 1
            rank = self._manifest.rank
            self._segment = SegmentFile(self._directory, rank=rank, number=self._segment_number)
            self._segment_opened_ns = now_ns()
            self._segment_records = 0
            self._manifest.sample_clocks()
        return self._segment

    def _rotate(self, *, final: bool) -> None:
        """Close a segment that is full or old, then keep the rank within its bound."""
        segment = self._segment
        if segment is None:
            return
        age_ns = now_ns() - self._segment_opened_ns
        full = segment.size_bytes >= self._settings.segment_bytes
        if final or full or age_ns >= self._settings.segment_s * _NS_PER_S:
            try:
                segment.close()
            except OSError:
                self._manifest.count("segment_write_errors", 1)
            self._put_away(segment)
            self._drop_oldest()

    def _put_away(self, segment: SegmentFile) -> None:
        stored = _StoredSegment(segment.path, segment.size_bytes, self._segment_records)
        self._stored.append(stored)
        self._segment = None

    def _drop_oldest(self) -> None:
        """Delete the oldest segments but the first, which tells how the run began.

        Room is kept for the segment that comes next.
        """
        room = self._settings.max_bytes - self._settings.slot_count * SLOT_BYTES
        room -= self._settings.segment_bytes
        while len(self._stored) > 1 and sum(kept.size_bytes for kept in self._stored) > room:
            oldest = self._stored[1]
            del self._stored[1]
            try:
                oldest.path.unlink(missing_ok=True)
            except OSError:
                self._manifest.count("segment_delete_errors", 1)
                continue
            self._manifest.count("segments_dropped", 1)
            self._manifest.count("segment_records_dropped", oldest.records)


def _drained(slots: NDArray[np.void], kept_out: int) -> NDArray[np.void]:
    """Return the record of how many of a run of slots were not written themselves."""
    import numpy as np

    first, last = int(slots["slot_seq"][0]), int(slots["slot_seq"][-1])
    return np.array(
        [(DRAINED_RECORD.code, first, last + 1, kept_out)], DRAINED_RECORD.numpy_dtype()
    )


def _load_arrow() -> None:
    """Import Arrow while the job starts up, not in the middle of a later step."""
    import pyarrow as _  # noqa: F401
