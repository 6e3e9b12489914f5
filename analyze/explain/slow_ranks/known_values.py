"""Sums, means and medians along an axis, of what is known: NaN marks what is absent."""

from __future__ import annotations

from functools import reduce
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...tables.arrays import BoolArray, FloatArray

Number = TypeVar("Number", np.float64, np.int64)
_SHORT = 7
"""Entries that numpy adds one after the other."""
_MANY, _SAMPLE = 100_000, 2_000
"""Of more values than these a sample of so many is looked at first."""
_FEW_ROWS = 9
"""So few rows are put in order by exchanging them whole."""


def over_last(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the sums over the last axis; where it is short its entries are added one after the other.

    That is what numpy does as well, but with a call of its loop for each sum.
    """
    if values.shape[-1] > _SHORT:
        return np.asarray(values.sum(axis=-1))
    return reduce(np.add, np.moveaxis(values, -1, 0))


def known_mean(values: FloatArray, axis: int, *, keepdims: bool = False) -> FloatArray:
    """Return the mean of the finite entries along an axis; NaN without."""
    known = np.isfinite(values)
    if values.shape[axis] == 1:
        only = np.where(known, values, np.nan)
        return only if keepdims else only.squeeze(axis)
    total = np.where(known, values, 0.0).sum(axis=axis, keepdims=keepdims)
    count = known.sum(axis=axis, keepdims=keepdims)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, total / count, np.nan)


def known_median(values: FloatArray, axis: int, *, keepdims: bool = False) -> FloatArray:
    """Return the median of the finite entries along an axis; NaN without."""
    ordered = np.sort(values, axis=axis)  # NaN comes last
    count = np.isfinite(values).sum(axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis=axis)
    middle = np.where(count > 0, (low + high) / 2, np.nan)
    return middle if keepdims else np.squeeze(middle, axis=axis)


def finite_median(values: FloatArray) -> float:
    """Return the median of all finite entries; NaN without."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.nan
    # Of many values some show between which borders the middle lies: only those are put in order.
    low, high = (len(finite) - 1) // 2, len(finite) // 2
    if len(finite) > _MANY:
        near = np.sort(finite[:: len(finite) // _SAMPLE])
        first, last = near[int(len(near) * 0.45)], near[int(len(near) * 0.55)]
        below = int((finite < first).sum())
        within = finite[(finite >= first) & (finite <= last)]
        if below <= low and high < below + len(within):
            finite, low, high = within, low - below, high - below
    finite.partition((low, high))
    return float((finite[low] + finite[high]) / 2)


def median_of_rows(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the median over the first axis.

    Rows are exchanged whole until the middle ones are known: faster than to sort each few by themselves.
    """
    rows: list[npt.NDArray[np.float32]] = list(values)
    first = (len(values) - 1) // 2
    if len(rows) > _FEW_ROWS:
        laid = values.reshape(len(values), -1).T.copy()
        return np.asarray(np.median(laid, axis=1, overwrite_input=True)).reshape(values.shape[1:])
    last = len(rows)
    while last > first:
        for at in range(1, last):
            low, high = rows[at - 1], rows[at]
            rows[at - 1], rows[at] = np.minimum(low, high), np.maximum(low, high)
        last -= 1
    if len(values) % 2:
        return rows[first]
    return np.asarray((rows[first] + rows[first + 1]) / np.float32(2.0))


def median_of_others(values: FloatArray, references: BoolArray) -> FloatArray:
    """Return for each entry the median of the other entries that are references.

    Along the last axis; NaN where there is none. In a sorted row, leaving one out
    moves the values right of it one place to the left.
    """
    usable = references & np.isfinite(values)
    filled = np.where(usable, values, np.inf)
    order = np.argsort(filled, axis=-1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(values.shape[-1]), axis=-1)
    ordered = np.take_along_axis(filled, order, axis=-1)
    count = usable.sum(axis=-1, keepdims=True) - usable
    position = np.where(usable, place, values.shape[-1])
    middle = []
    for wanted in (np.maximum(count - 1, 0) // 2, count // 2):
        index = np.minimum(wanted + (wanted >= position), values.shape[-1] - 1)
        middle.append(np.take_along_axis(ordered, index, axis=-1))
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, (middle[0] + middle[1]) / 2, np.nan)
