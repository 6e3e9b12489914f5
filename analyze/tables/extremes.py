"""The least and the greatest value of each group, and how many ranks it has, for each of its rows.

Groups are numbered from 0, as operations are. No sort and no table of groups is needed for that, which is most of
what a grouping of pandas takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import BoolArray, IntArray
from .sorting import order_of


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
