"""Centres of groups that leave out the row they are compared with."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .arrays import BoolArray, FloatArray, IntArray, combined


def leave_one_out_median(cells: pd.DataFrame, keys: list[str], name: str) -> FloatArray:
    """Return for each row the median of a column over the other rows of its group."""
    columns = [cells[key].to_numpy(np.int64) for key in keys]
    return median_of_others(cells[name].to_numpy(np.float64), *columns)


def median_of_others(
    value: FloatArray, *keys: IntArray, counts: BoolArray | None = None
) -> FloatArray:
    """Return for each row the median over the other rows with the same keys.

    In the sorted group of n + 1 values, leaving out position i moves the values
    right of it one place to the left; the middle of the remaining n is then read
    directly. NaN where no other row is left.

    Args:
        value: What the median is of.
        keys: The columns that make the groups.
        counts: Which rows others are compared with; None for all.
    """
    group = combined(*keys)
    # Rows that do not count come last in their group, beyond every middle that is read.
    ranked = (value, group) if counts is None else (value, ~counts, group)
    order = np.lexsort(ranked).astype(np.int32)
    ordered, group = value[order], group[order]
    opens = np.append(True, group[1:] != group[:-1])[: len(group)]
    head = np.flatnonzero(opens).astype(np.int32)
    own = np.cumsum(opens, dtype=np.int32) - 1
    del opens, group
    first = head[own]
    if counts is None:
        others = np.diff(np.append(head, len(value))).astype(np.int32)[own] - 1
    else:
        known = counts[order]
        others = (np.bincount(own, known, len(head)).astype(np.int32)[own] - known).astype(np.int32)
    place = np.arange(len(value), dtype=np.int32) - first

    def remaining(position: IntArray) -> FloatArray:
        index = first + position + (position >= place)
        return np.asarray(ordered[np.minimum(index, len(value) - 1)])

    median = remaining(np.maximum(others - 1, 0) // 2)
    median += remaining(others // 2)
    median /= 2
    median[others == 0] = np.nan
    result = np.empty(len(value))
    result[order] = median
    return result
