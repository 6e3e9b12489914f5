"""Rows within groups: their order, and the least and greatest of each, faster than by a general sort.

Whole numbers are sorted together with their rows, as one number. Groups of one size are the rows of a table, each of
which is sorted by itself: that stays in the cache, where one sort of all values does not.

Groups are numbered from 0, as operations are. No sort and no table of groups is needed for that, which is most of
what a grouping of pandas takes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import BoolArray, FloatArray, IntArray, numbers_in

_HALF = 1 << 31
"""Numbers below it and rows fit into 64 bits together."""
MOST_SIZES = 8
"""Sizes of groups from which on all values are sorted at once."""
MANY_VALUES = 1 << 12
"""Values of a group from which on it is sorted by itself, whatever the sizes of the others."""
FEW_RUNS = 64
"""Rising runs that a general sort merges faster."""
FEWEST_ROWS = 1 << 12
"""With fewer rows that takes no time."""
_SHORT = 1 << 16
"""Numbers below it are sorted by counting."""


def order_of(number: IntArray) -> npt.NDArray[np.int32]:
    """Return the stable order of whole numbers from 0 on; of fewer than 2**31 rows."""
    most = int(number.max(initial=0))
    runs = np.count_nonzero(number[1:] < number[:-1])
    if most >= _HALF or runs < FEW_RUNS:
        return np.argsort(number, kind="stable").astype(np.int32)
    if most < _SHORT:
        return np.argsort(number.astype(np.uint16), kind="stable").astype(np.int32)
    # The row behind the number makes the order stable, and numbers alone are sorted faster than places.
    both = number.astype(np.int64)
    both <<= 32
    both += np.arange(len(number), dtype=np.int32)
    both.sort()
    return both.astype(np.int32)


def sorted_in_groups(value: FloatArray, group: IntArray) -> npt.NDArray[Any]:
    """Return the stable order by group, and by value within each; unknown values last.

    Args:
        value: What is sorted.
        group: Whole numbers, not below 0.
    """
    if len(value) < FEWEST_ROWS:
        return np.lexsort((value, group))
    order = order_of(group)
    own = group[order]
    head = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
    size = np.diff(np.append(head, len(own)))
    sizes = np.unique(size)
    if len(sizes) > MOST_SIZES or len(head) * 2 > len(own):
        return np.lexsort((value, group))
    for one in sizes.tolist():
        place = head[size == one][:, None] + np.arange(one)
        rows = order[place]
        within = np.argsort(value[rows], axis=1, kind="stable")
        order[place] = np.take_along_axis(rows, within, axis=1)
    return order


class ValuesByGroup(NamedTuple):
    """Values of groups one after the other, sorted in each, unknown ones last."""

    value: FloatArray
    first: IntArray
    """Where each group begins; of one without rows, the next one."""
    known: IntArray
    """How many values of each are known."""

    @property
    def median(self) -> FloatArray:
        """Return the median of the known values of each group; NaN without any."""
        return (self._at((self.known - 1) // 2) + self._at(self.known // 2)) / 2

    def quantile(self, share: float) -> FloatArray:
        """Return a quantile of the known values of each group, linear between two of them; NaN without any."""
        place = share * (self.known - 1)
        below = place.astype(np.int64)
        low, part = self._at(below), place - below
        high = self._at(np.minimum(below + 1, self.known - 1))
        return np.where(part > 0, low + (high - low) * part, low)

    def _at(self, place: IntArray) -> FloatArray:
        if not len(self.value):
            return np.full(len(self.first), np.nan)
        at = np.minimum(self.first + np.maximum(place, 0), len(self.value) - 1)
        return np.where(self.known > 0, self.value[at], np.nan)


def values_by_group(value: FloatArray, group: IntArray) -> ValuesByGroup:
    """Return the values of each group in order.

    Args:
        value: What is sorted.
        group: Whole numbers from 0 on, not many more than there are rows.
    """
    size = np.bincount(group)
    first = np.cumsum(size) - size
    known = np.bincount(group, ~np.isnan(value), len(size)).astype(np.int64)
    is_large = size > MANY_VALUES
    sizes = numbers_in(size[~is_large])
    if len(sizes) > MOST_SIZES:
        return ValuesByGroup(value[np.lexsort((value, group))], first, known)
    ordered = value[order_of(group)]
    for low, count in zip(first[is_large].tolist(), size[is_large].tolist(), strict=True):
        ordered[low : low + count].sort()
    for one in sizes[sizes > 1].tolist():
        place = first[size == one][:, None] + np.arange(one)
        ordered[place] = np.sort(ordered[place], axis=1)
    return ValuesByGroup(ordered, first, known)


def least_of_group(value: npt.NDArray[Any], group: IntArray) -> npt.NDArray[Any]:
    """Return for each row the least known value of its group; NaN where none is known."""
    return _extreme(value, group, np.minimum, _largest(value.dtype))


def greatest_of_group(value: npt.NDArray[Any], group: IntArray) -> npt.NDArray[Any]:
    """Return for each row the greatest known value of its group; NaN where none is known."""
    return _extreme(value, group, np.maximum, -_largest(value.dtype))


def any_of_group(value: BoolArray, group: IntArray) -> BoolArray:
    """Return for each row whether any row of its group is so."""
    return any_by_group(value, group)[group]


def any_by_group(value: BoolArray, group: IntArray) -> BoolArray:
    """Return for each group whether any of its rows is so."""
    found = np.zeros(_count(group), dtype=bool)
    found[group[value]] = True
    return found


def last_begun(start: IntArray, instants: IntArray) -> IntArray:
    """Return the last start at or before each instant, both rising; -1 where nothing has begun.

    Each start is looked up among the instants, which are most often more.
    """
    place = np.searchsorted(instants, start, side="left")
    begun = np.bincount(place, minlength=len(instants) + 1)[:-1]
    return np.cumsum(begun) - 1


def ranks_of_group(rank: IntArray, group: IntArray) -> IntArray:
    """Return for each row how many different ranks its group has."""
    order: IntArray = order_of(group)
    own, by = rank[order], group[order]
    if ((own[1:] < own[:-1]) & (by[1:] == by[:-1])).any():
        order = np.lexsort((rank, group))
        own, by = rank[order], group[order]
    is_new = np.append(True, (own[1:] != own[:-1]) | (by[1:] != by[:-1]))[: len(own)]
    return np.bincount(by[is_new], minlength=_count(group))[group]


def _count(group: IntArray) -> int:
    return int(group.max(initial=-1)) + 1


def _largest(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def _extreme(
    value: npt.NDArray[Any], group: IntArray, choose: np.ufunc, worst: Any
) -> npt.NDArray[Any]:
    is_float = value.dtype.kind == "f"
    if is_float:
        unknown = np.isnan(value)
        value = np.where(unknown, worst, value) if unknown.any() else value
    found = np.full(_count(group), worst, value.dtype)
    choose.at(found, group, value)
    if is_float:
        found[found == worst] = np.nan
    return np.asarray(found[group])
