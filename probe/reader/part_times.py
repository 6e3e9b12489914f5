"""When parts of recordings began and ended, in the time of day, and which rank ended an attempt.

Where the wall clock of a machine was put, before or after means little in its own readings: a
part may end before it began, and an attempt lie before the one that it follows. All its parts
are then placed by the monotonic clock, with the difference that held at the last reading.

An attempt ends by one rank: its launcher ends all others once one is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from signal import SIGTERM

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


APART_NS = 50_000_000
"""Ends on two machines are compared by their wall clocks, which are as far apart."""


def failed_first(parts: Sequence[RankRecords]) -> RankRecords | None:
    """Return the part of the rank that ended first, and by itself; None where nothing tells.

    Unknown where any end is unknown, where the first one was in order, or by the signal of launchers: then
    somebody else ended the job. A rank that does not obey that signal is killed last.
    """
    ends = [(_ended_unix_ns(part), part) for part in parts]
    known = sorted(
        ((end_ns, part) for end_ns, part in ends if end_ns is not None), key=lambda end: end[0]
    )
    if not known or len(known) < len(ends):
        return None
    first_ns, first = known[0]
    if first.last_seen.wait_status in (None, 0, SIGTERM):
        return None
    elsewhere = [end_ns for end_ns, part in known if boot_of(part) != boot_of(first)]
    return first if not elsewhere or min(elsewhere) - first_ns >= APART_NS else None


def _ended_unix_ns(part: RankRecords) -> int | None:
    """Return when a process ended, wall clock: the monotonic ones of two machines have nothing in common."""
    pairs = readings((part.manifest or {}).get("clock_pairs"))
    if part.last_seen.ended_ns is None or not pairs:
        return None
    monotonic_ns, unix_ns, _ = pairs[-1]
    return part.last_seen.ended_ns - monotonic_ns + unix_ns
