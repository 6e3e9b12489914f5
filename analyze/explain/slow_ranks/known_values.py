"""Sums, means and medians along an axis, of what is known: NaN marks what is absent."""

from __future__ import annotations

from functools import reduce
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...tables.arrays import FloatArray

Number = TypeVar("Number", np.float64, np.int64)
_SHORT = 7
"""Entries that numpy adds one after the other."""


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
