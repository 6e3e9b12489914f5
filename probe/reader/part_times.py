"""When parts of recordings began and ended, in the time of day.

Where the wall clock of a machine was put, before or after means little in its own readings: a
part may end before it began, and an attempt lie before the one that it follows. All its parts
are then placed by the monotonic clock, with the difference that held at the last reading.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from ..schema.clock_steps import clock_steps, readings
from .rank_records import RankRecords

FAR_NS = 1 << 62
"""What is no time of this world lies beyond."""


def boot_of(part: RankRecords) -> object:
    """Return what is equal for parts whose monotonic clocks are one."""
    manifest = part.manifest or {}
    names = (manifest.get(key) for key in ("boot_id", "host"))
    return next((name for name in names if isinstance(name, str) and name), None)


class PartTimes:
    """The spans of parts that are to be compared."""

    def __init__(self, parts: Iterable[RankRecords]) -> None:
        """Find the machines whose wall clock was put while they recorded, or in between."""
        known: dict[object, list[list[int]]] = {}
        for part in parts:
            pairs = readings((part.manifest or {}).get("clock_pairs"))
            known.setdefault(boot_of(part), []).extend(pairs)
        self._offset_ns: dict[object, int] = {}
        for boot, pairs in known.items():
            pairs.sort()
            if clock_steps(pairs):
                self._offset_ns[boot] = pairs[-1][1] - pairs[-1][0]

    def span_ns(self, part: RankRecords) -> tuple[int, int]:
        """Return when a part began and ended, wall clock in ns; its last record if it was killed.

        What is no time of this world is moved to its border: sums of damaged ones fit no column.
        """
        pairs = readings((part.manifest or {}).get("clock_pairs"))
        offset_ns = self._offset_ns.get(boot_of(part))
        if pairs and offset_ns is not None:
            start_ns, end_ns = _by_monotonic_clock(part, pairs, offset_ns)
        else:
            start_ns, end_ns = _stated(part, pairs)
        start_ns = min(max(start_ns, 0), FAR_NS)
        return start_ns, min(max(start_ns, end_ns), FAR_NS)


def _by_monotonic_clock(
    part: RankRecords, pairs: list[list[int]], offset_ns: int
) -> tuple[int, int]:
    is_closed = (part.manifest or {}).get("closed_unix_ns") is not None
    end_ns = pairs[-1][0] if is_closed else _newest_ns(part)
    return pairs[0][0] + offset_ns, end_ns + offset_ns


def _stated(part: RankRecords, pairs: list[list[int]]) -> tuple[int, int]:
    manifest = part.manifest or {}
    start, closed = manifest.get("started_unix_ns"), manifest.get("closed_unix_ns")
    # In JSON, true is no number; in Python it is one.
    start_ns = start if type(start) is int else 0
    if type(closed) is int:
        return start_ns, closed
    newest_ns = _newest_ns(part)
    if not pairs or newest_ns == -FAR_NS:
        return start_ns, start_ns
    return start_ns, newest_ns - pairs[-1][0] + pairs[-1][1]


def _newest_ns(part: RankRecords) -> int:
    return max((_newest_of(table) for table in part.tables.values()), default=-FAR_NS)


def _newest_of(table: pa.Table) -> int:
    names = [name for name in ("start_ns", "issue_ns", "time_ns") if name in table.column_names]
    times = [pc.max(table[name]).as_py() for name in names]
    return max((time for time in times if time is not None), default=-FAR_NS)
