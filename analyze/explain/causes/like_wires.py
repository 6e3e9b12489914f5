"""Which transfers are alike, and how long these take.

Transfers are compared with those of their axis and kind that send about as much.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import FloatArray, IntArray, narrow
from ...tables.numbering import numbered
from ...tables.sorting import values_by_group

WIRE_REFERENCE = 0.1
"""Quantile of the wire times of like operations that counts as an undisturbed wire."""
LIKE_SIZE = 1.25
"""Transfers are compared with those of up to that many times their size: the stages of a model
have gradients of nearly, but not quite, the same size."""


class LikeWires(NamedTuple):
    """Which events are alike, and what these take; numbers are from 0 on."""

    number: IntArray
    """Of the axis, the kind and the like size (``like_size``) of each event."""
    exact: IntArray
    """Of the axis, the kind and just the size of each event."""
    usual: FloatArray
    """Median wire time by ``number``, ns; NaN where none is known."""
    undisturbed: FloatArray
    """Low quantile (``WIRE_REFERENCE``) of the wire times by ``exact``, ns."""

    @property
    def usual_ns(self) -> FloatArray:
        """Return the median wire time of what each event is compared with."""
        return self.usual[self.number]

    @property
    def undisturbed_ns(self) -> FloatArray:
        """Return how long each event would take on an undisturbed wire."""
        return self.undisturbed[self.exact]


def like_wires_of(frame: pd.DataFrame) -> LikeWires:
    """Return which of some communication events are alike, and what these take."""
    wire = frame["wire_ns"].to_numpy(np.float64)
    place, sizes = pd.factorize(frame["size_bytes"].to_numpy(np.int64))
    axis, kind = (codes_of(frame[name]) for name in ("axis", "kind"))
    exact = number = narrow(numbered(axis, kind, place))
    values = values_by_group(wire, exact)
    usual, undisturbed = values.median, values.quantile(WIRE_REFERENCE)
    least = _like_sizes(sizes)
    # Most often no two sizes are taken as one: the same events are alike then.
    if len(np.unique(least)) < len(sizes):
        number = narrow(numbered(axis, kind, least[place]))
        usual = values_by_group(wire, number).median
    return LikeWires(number, exact, usual, undisturbed)


def codes_of(key: pd.Series) -> IntArray:
    """Return whole numbers that are in the order of the values."""
    codes = key if key.dtype == bool else key.astype("category").cat.codes
    return np.asarray(codes, dtype=np.int64)


def like_size(frame: pd.DataFrame) -> IntArray:
    """Return for each row the least size of those that it is compared with, bytes."""
    place, sizes = pd.factorize(frame["size_bytes"].to_numpy(np.int64))
    return _like_sizes(sizes)[place]


def _like_sizes(sizes: IntArray) -> IntArray:
    """Return for each of some different sizes the least of those that are taken as one with it."""
    order = np.argsort(sizes)
    least = sizes[order]
    for position, size in enumerate(least[1:].tolist(), start=1):
        if size <= LIKE_SIZE * least[position - 1]:
            least[position] = least[position - 1]
    found = np.empty_like(least)
    found[order] = least
    return found
