"""The segments of one directory: opened, rotated, kept within a bound of bytes and free space."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..clock import now_ns
from ..schema.segment import SegmentFile, segment_paths

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesBounds:
    """How large segments become, and how much is kept."""

    segment_bytes: int
    """A segment is closed at this size …"""
    segment_s: float
    """… or at this age."""
    max_bytes: int
    """Bound of all segments; the oldest but the first are dropped."""
    free_floor_frac: float
    """Nothing is written while the file system has less free space than this share."""


class _Stored(NamedTuple):
    path: Path
    size_bytes: int
    records: int


class SegmentSeries:
    """Segments that are written one after the other. Failures are counted, not raised."""

    def __init__(
        self,
        directory: Path,
        rank: int | None,
        bounds: SeriesBounds,
        count: Callable[[str, int], None],
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        """Go on after the segments that are there.

        Args:
            directory: That of a rank or a host.
            rank: The rank, None in the directory of a host.
            bounds: Sizes and ages.
            count: Adds to a named counter.
            opened: Called when a segment was begun.

        Raises:
            OSError: The directory cannot be listed.
        """
        self._directory = directory
        self._rank = rank
        self._bounds = bounds
        self._count = count
        self._tell_opened = opened
        self._segment: SegmentFile | None = None
        self._records = 0
        self._opened_ns = 0
        self._number = 0
        self._stored: deque[_Stored] = deque()
        for number, path in segment_paths(directory).items():
            self._number = number
            self._stored.append(_Stored(path, path.stat().st_size, 0))

    def append(self, payload: bytes | memoryview, records: int) -> bool:
        """Add a block; return whether it was written.

        Args:
            payload: The block.
            records: Records in it, for the counters of what is lost.
        """
        if not self._has_free_space():
            self._count("disk_floor_dropped", records)
            return False
        try:
            self._open().append(payload)
            self._records += records
        except OSError:
            # The file may end in a torn block, so the next one starts a new file.
            self._count("segment_write_errors", 1)
            self._count("segment_write_dropped", records)
            if self._segment is not None:
                self._segment.abandon()
                self._put_away(self._segment)
            return False
        self.rotate()
        return True

    def rotate(self) -> None:
        """Close the segment that is open if it is full or old, then keep within the bound."""
        segment = self._segment
        if segment is None:
            return
        age_ns = now_ns() - self._opened_ns
        full = segment.size_bytes >= self._bounds.segment_bytes
        if full or age_ns >= self._bounds.segment_s * _NS_PER_S:
            self._close(segment)

    def close(self) -> None:
        """Close the segment that is open."""
        if self._segment is not None:
            self._close(self._segment)

    def _has_free_space(self) -> bool:
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return False
        return disk.f_bavail >= disk.f_blocks * self._bounds.free_floor_frac

    def _open(self) -> SegmentFile:
        if self._segment is None:
            self._number += 1
            self._segment = SegmentFile(self._directory, rank=self._rank, number=self._number)
            self._opened_ns = now_ns()
            self._records = 0
            self._tell_opened()
        return self._segment

    def _close(self, segment: SegmentFile) -> None:
        try:
            segment.close()
        except OSError:
            self._count("segment_write_errors", 1)
        self._put_away(segment)
        self._drop_oldest()

    def _put_away(self, segment: SegmentFile) -> None:
        self._stored.append(_Stored(segment.path, segment.size_bytes, self._records))
        self._segment = None

    def _drop_oldest(self) -> None:
        """Delete the oldest segments but the first, which tells how it all began.

        Room is kept for the segment that comes next.
        """
        room = self._bounds.max_bytes - self._bounds.segment_bytes
        while len(self._stored) > 1 and sum(kept.size_bytes for kept in self._stored) > room:
            oldest = self._stored[1]
            del self._stored[1]
            try:
                oldest.path.unlink(missing_ok=True)
            except OSError:
                self._count("segment_delete_errors", 1)
                continue
            self._count("segments_dropped", 1)
            self._count("segment_records_dropped", oldest.records)
