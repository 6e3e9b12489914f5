"""Numbers for combinations of whole numbers, in the order in which they occur.

Where the numbers are few beside the rows they are places in a table: that takes a fraction of what hashing does.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from .arrays import MOST_PLACES, IntArray, combined


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
