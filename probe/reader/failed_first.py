"""Which rank an attempt of a job ended by: its launcher ends all others once one is gone."""

from __future__ import annotations

from collections.abc import Sequence
from signal import SIGTERM

from ..schema.clock_steps import readings
from .part_times import boot_of
from .rank_records import RankRecords

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
