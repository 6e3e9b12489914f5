"""Arrays of numbers: their types, keys made of several of them, and numbers for combinations.

Where the numbers are few beside the rows they are places in a table: that takes a fraction of what hashing does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.signedinteger[Any]]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def combined(*keys: IntArray) -> IntArray:
    """Return whole numbers that are equal where all keys are, and in the order of the keys."""
    number: IntArray = np.zeros(0, np.int64)
    # A column of pandas is taken, too, and the answer is an array all the same.
    for at, key in enumerate(map(np.asarray, keys)):
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
"""Places of a table for each row, up to which it is used."""


def numbers_in(values: IntArray) -> IntArray:
    """Return the different whole numbers among some, sorted."""
    if not len(values):
        return values
    lowest = int(values.min())
    span = int(values.max()) - lowest + 1
    if span > MOST_PLACES * len(values):
        return np.unique(values)
    is_used = np.zeros(span, dtype=bool)
    is_used[np.subtract(values, lowest, dtype=np.int64)] = True
    return np.flatnonzero(is_used) + lowest


def narrow(values: IntArray) -> IntArray:
    """Return whole numbers with 32 bits where they fit: ranks, steps and operations do."""
    if len(values) and not -(2**31) <= int(values.min()) <= int(values.max()) < 2**31:
        return values
    return values.astype(np.int32)
