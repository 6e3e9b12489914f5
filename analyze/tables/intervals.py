"""Interval algebra on integers: union, intersection, difference, priority sweep.

Intervals are half open, ``[start, end)``, in any one integer unit. A *set* of
intervals is an int64 array of shape ``(n, 2)`` in any order, possibly
overlapping; an interval whose end is not after its start is empty and counts
for nothing. A *merged* set is sorted, disjoint, and has no two intervals that
touch. Nothing here knows what the intervals stand for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import IntArray, numbers_in
from .sorting import last_begun

NO_OWNER = -1
"""Owner of a segment in which no interval is active."""


class Segments(NamedTuple):
    """Disjoint intervals that tile a window, each with the input that owns it."""

    start: IntArray
    end: IntArray
    owner: IntArray
    """Index of the winning input interval, or ``NO_OWNER``."""

    @property
    def length(self) -> IntArray:
        """Return the length of every segment."""
        return self.end - self.start


def pair(start: npt.ArrayLike, end: npt.ArrayLike) -> IntArray:
    """Return the non-empty intervals of two equally long columns as a set."""
    intervals = np.stack(
        [np.asarray(start, dtype=np.int64), np.asarray(end, dtype=np.int64)], axis=-1
    ).reshape(-1, 2)
    return intervals[intervals[:, 1] > intervals[:, 0]]


def union(intervals: IntArray) -> IntArray:
    """Return the merged set that covers the same instants.

    >>> union(np.array([[5, 9], [0, 3], [3, 4], [6, 7]])).tolist()
    [[0, 4], [5, 9]]
    """
    intervals = pair(intervals[:, 0], intervals[:, 1])
    if not len(intervals):
        return intervals
    if (intervals[1:, 0] < intervals[:-1, 0]).any():
        intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    opens = np.append(True, intervals[1:, 0] > reach[:-1])
    closes = np.append(opens[1:], True)
    return np.column_stack([intervals[opens, 0], reach[closes]])


def total_length(intervals: IntArray) -> int:
    """Return how long at least one of the intervals is active."""
    merged = union(intervals)
    return int((merged[:, 1] - merged[:, 0]).sum())


def covered_lengths(
    owner: IntArray, start: npt.ArrayLike, end: npt.ArrayLike, count: int
) -> IntArray:
    """Return how long at least one of its intervals is active, for each of so many owners.

    Args:
        owner: Of each interval, from 0; a negative one has none.
        start: Of each interval.
        end: Of each interval.
        count: How many owners there are.

    >>> covered_lengths(np.array([1, 0, 1]), [5, 0, 0], [9, 3, 6], 3).tolist()
    [3, 9, 0]
    """
    begin, stop = np.asarray(start, dtype=np.int64), np.asarray(end, dtype=np.int64)
    is_own = (owner >= 0) & (stop > begin)
    owner, begin, stop = owner[is_own], begin[is_own], stop[is_own]
    if not len(owner):
        return np.zeros(count, dtype=np.int64)
    # The owners are laid one after the other on one line.
    origin = begin.min()
    shift = owner.astype(np.int64) * (stop.max() - origin + 1) - origin
    order = np.argsort(begin + shift, kind="stable")
    first, last = (begin + shift)[order], (stop + shift)[order]
    reach = np.maximum.accumulate(last)
    fresh = np.maximum(first, np.append(first[:1], reach[:-1]))
    covered = np.maximum(last - fresh, 0)
    found = np.zeros(count, dtype=np.int64)
    np.add.at(found, owner[order], covered)
    return found


def intersect(first: IntArray, second: IntArray) -> IntArray:
    """Return the merged set of the instants that are in both sets."""
    first, second = union(first), union(second)
    bounds = _bounds(first, second)
    return _select(bounds, _is_covered(first, bounds) & _is_covered(second, bounds))


def subtract(first: IntArray, second: IntArray) -> IntArray:
    """Return the merged set of the instants in ``first`` that are not in ``second``."""
    first, second = union(first), union(second)
    bounds = _bounds(first, second)
    return _select(bounds, _is_covered(first, bounds) & ~_is_covered(second, bounds))


def covered_length(merged: IntArray, start: npt.ArrayLike, end: npt.ArrayLike) -> IntArray:
    """Return, for each query ``[start, end)``, how much of it a *merged* set covers.

    Both query columns have the same shape; an empty query is covered by 0.

    >>> covered_length(np.array([[0, 4], [5, 9]]), [3, 0], [6, 10]).tolist()
    [2, 8]
    """
    first, last = np.asarray(start, dtype=np.int64), np.asarray(end, dtype=np.int64)
    return _covered_before(merged, np.maximum(first, last)) - _covered_before(merged, first)


LONGEST_LINE = 2**61
"""Length of a line on which the times of several ranks are compared at once."""
QUERIES_AT_ONCE = 1 << 18
"""About how many queries are answered at once: few passes, and what they look at stays in the cache."""


def covered_by_rank(
    of_rank: IntArray,
    intervals: tuple[IntArray, IntArray],
    rank: IntArray,
    start: IntArray,
    end: IntArray,
) -> IntArray:
    """Return how much of each query the intervals of its own rank cover.

    The ranks are laid one after the other on one line; as many at a time as fit it.

    Args:
        of_rank: Rank of each interval, rising.
        intervals: Their starts and ends.
        rank: Rank of each query, rising.
        start: Where each begins.
        end: Where it ends.
    """
    inside = np.zeros(len(rank), np.int64)
    low, high = intervals
    if not len(of_rank) or not len(rank):
        return inside
    origin = min(int(start.min()), int(low.min()))
    length = max(int(end.max()), int(high.max())) - origin + 1
    ranks = int(rank[-1]) + 1
    at_once = max(1, min(LONGEST_LINE // length, ranks * QUERIES_AT_ONCE // len(rank)))
    borders = np.arange(0, ranks + at_once, at_once)
    of_queries, of_parts = (np.searchsorted(of, borders).tolist() for of in (rank, of_rank))
    for at, first in enumerate(borders[:-1].tolist()):
        own, parts = slice(*of_queries[at : at + 2]), slice(*of_parts[at : at + 2])
        place = (of_rank[parts].astype(np.int64) - first) * length - origin
        merged = np.column_stack([low[parts] + place, high[parts] + place])
        if (merged[1:, 0] < merged[:-1, 1]).any() or (merged[:, 0] >= merged[:, 1]).any():
            merged = union(merged)
        moved = (rank[own].astype(np.int64) - first) * length - origin
        inside[own] = covered_length(merged, start[own] + moved, end[own] + moved)
    return inside


def distinct(values: IntArray) -> IntArray:
    """Return the different values, sorted; faster than hashing, since bounds come nearly sorted."""
    ordered = np.sort(values, kind="stable")
    is_new = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return np.asarray(ordered[is_new])


def sweep_priority(
    intervals: IntArray, priority: npt.ArrayLike, window: tuple[int, int]
) -> Segments:
    """Give every instant of a window to the one active interval that matters most.

    At each instant the interval with the lowest priority number wins; among
    equals the one that ends last; among these the one that starts first, then
    the one that comes first in the input. The segments tile the window exactly,
    neighbours have different owners, and an owner may have several segments.

    Worked example, window ``[0, 10)``:

    ======== ======== =========
    interval priority owns
    ======== ======== =========
    [1, 9)   1        [1,3) [5,6)
    [3, 5)   0        [3,5)
    [6, 9)   0        [6,9)
    -        -        [0,1) [9,10)
    ======== ======== =========

    Args:
        intervals: Any set; intervals may reach outside the window.
        priority: One integer per interval; few distinct values are expected
            (the cost is one pass over all bounds per distinct value).
        window: Start and end; an empty window gives no segments.
    """
    intervals = np.asarray(intervals, dtype=np.int64).reshape(-1, 2)
    level = np.asarray(priority)
    window_start, window_end = window
    if window_end <= window_start:
        empty = np.empty(0, dtype=np.int64)
        return Segments(empty, empty, empty)
    cut = np.clip(intervals, window_start, window_end)
    bounds = distinct(np.append(cut.ravel(), (window_start, window_end)))
    starts = bounds[:-1]
    owner = np.full(len(starts), NO_OWNER, dtype=np.int64)
    candidates = np.flatnonzero(cut[:, 1] > cut[:, 0])
    level = level[candidates]
    for value in numbers_in(level).tolist():
        members = candidates[level == value]
        owner = np.where(owner == NO_OWNER, _last_to_end(intervals, members, starts), owner)
    opens = np.append(True, owner[1:] != owner[:-1])
    return Segments(starts[opens], np.append(starts[opens][1:], window_end), owner[opens])


def _last_to_end(intervals: IntArray, members: IntArray, instants: IntArray) -> IntArray:
    """Return which member is active and ends last at each instant, ``NO_OWNER`` if none is.

    Of all members that have begun, the one with the latest end decides: if even
    that one is over, none is active.
    """
    start, end = intervals[members, 0], intervals[members, 1]
    if not _is_ordered(start, end):
        order = np.lexsort((-end, start))
        start, end, members = start[order], end[order], members[order]
    reach = np.maximum.accumulate(end)
    is_record = np.append(True, end[1:] > reach[:-1])
    start, end, holders = start[is_record], end[is_record], members[is_record]
    place = last_begun(start, instants)
    is_active = (place >= 0) & (end[place] > instants)
    return np.where(is_active, holders[place], NO_OWNER)


def _is_ordered(start: IntArray, end: IntArray) -> bool:
    """Tell if intervals rise, and of those that start together the longer ones come first."""
    rises = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] <= end[:-1]))
    return bool(rises.all())


def _bounds(first: IntArray, second: IntArray) -> IntArray:
    return distinct(np.concatenate([first.ravel(), second.ravel()]))


def _is_covered(merged: IntArray, instants: IntArray) -> npt.NDArray[np.bool_]:
    begun = np.searchsorted(merged[:, 0], instants, side="right")
    over = np.searchsorted(merged[:, 1], instants, side="right")
    return begun > over


def _select(bounds: IntArray, is_in: npt.NDArray[np.bool_]) -> IntArray:
    """Merge the elementary intervals that begin at the selected bounds."""
    return union(np.column_stack([bounds[:-1][is_in[:-1]], bounds[1:][is_in[:-1]]]))


def _covered_before(merged: IntArray, instants: IntArray) -> IntArray:
    """Return the covered length left of each instant."""
    if not len(merged):
        return np.zeros_like(instants)
    start, end = merged[:, 0], merged[:, 1]
    before = np.append(0, np.cumsum(end - start))
    if len(instants) > len(start) and (instants[1:] >= instants[:-1]).all():
        place = last_begun(start, instants) + 1
    else:
        place = np.searchsorted(start, instants, side="right")
    inside = np.where(place > 0, np.maximum(end[place - 1] - instants, 0), 0)
    return before[place] - inside
