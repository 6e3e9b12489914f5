"""Arrays of numbers: their types, keys made of several of them, and numbers for combinations.

Where the numbers are few beside the rows they are places in a table: that takes a fraction of what hashing does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

IntArray = npt.NDArray[np.signedinteger[Any]]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def combined(*keys: IntArray) -> IntArray:
    """Return whole numbers that are equal where all keys are, and in the order of the keys."""
    number: IntArray = np.zeros(0, np.int64)
    for at, key in enumerate(keys):
        if not len(key):
            return number
        lowest = int(key.min())
        width = int(key.max()) - lowest + 1
        if at == 0:
            is_wide = width >= 2**62
            number = np.unique(key, return_inverse=True)[1] if is_wide else key - np.int64(lowest)
            continue
        if (int(number.max()) + 1) * width >= 2**62:
            number = np.unique(number, return_inverse=True)[1]
            key, width = np.unique(key, return_inverse=True)[1], len(key)
            lowest = 0
        number *= width
        number += key
        number -= lowest
    return number


MOST_PLACES = 4
"""Places of the table for each row, up to which it is used."""


def numbered(*keys: IntArray) -> IntArray:
    """Return one number for each combination of whole numbers, in the order they occur in."""
    number = combined(keys[0])
    for key in keys[1:]:
        if len(key) and _span(number) * _span(key) > MOST_PLACES * len(key):
            number = _in_order(number)
        number = combined(number, key)
    return _in_order(number).astype(np.int64)


def _span(number: IntArray) -> int:
    return int(number.max()) - int(number.min()) + 1


def _in_order(number: IntArray) -> IntArray:
    """Return numbers, not below 0, as those in the order they occur in."""
    if int(number.max(initial=0)) >= MOST_PLACES * len(number):
        return np.asarray(pd.factorize(number)[0], dtype=np.int64)
    row = np.arange(len(number), dtype=np.int32)
    first = np.empty(int(number.max(initial=-1)) + 1, np.int32)
    # Of equal places the last value stays: that of the first row.
    first[number[::-1]] = row[::-1]
    first_row = first[number]
    own = np.cumsum(first_row == row, dtype=np.int32) - np.int32(1)
    return np.asarray(own[first_row])
