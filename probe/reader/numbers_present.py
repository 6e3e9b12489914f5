"""Which records of a part are there, by their slot sequence numbers: these are given from 1 without gaps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schema.records import MADE_BY_THE_WRITER

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MOST_SLOTS = 1 << 32
"""A part that counts further is damaged: no process makes as many records."""


class NumbersPresent(Protocol):
    """The slot sequence numbers of the records that were read."""

    @property
    def last(self) -> int:
        """Return the largest; 0 if there is none."""

    def up_to(self, slots: Ints) -> Ints:
        """Return how many there are up to each of some, that one included."""


class SortedNumbers:
    """Numbers that are all held, in order."""

    def __init__(self, numbers: Ints) -> None:
        """Take them."""
        self._numbers = numbers

    @property
    def last(self) -> int:
        """Return the largest; 0 if there is none."""
        return int(self._numbers[-1]) if len(self._numbers) else 0

    def up_to(self, slots: Ints) -> Ints:
        """Return how many there are up to each of some, that one included."""
        return np.asarray(np.searchsorted(self._numbers, slots, side="right"))


class SlotBits:
    """Which sequence numbers are there, a byte each: they are given from 1 without gaps."""

    def __init__(self) -> None:
        """Begin with none."""
        self._sums = [np.zeros(0, np.int64)]
        self._is_there = np.zeros(1 << 16, dtype=bool)
        self.last = 0
        self.are_possible = True

    def add(self, slots: Ints) -> Mask:
        """Take numbers in; return which of them are new."""
        if not len(slots):
            return np.zeros(0, dtype=bool)
        largest = int(slots.max())
        if int(slots.min()) < 0 or largest >= _MOST_SLOTS:
            self.are_possible = False
            return np.ones(len(slots), dtype=bool)
        if largest >= len(self._is_there):
            more = np.zeros(largest + largest // 4 + 1, dtype=bool)
            more[: len(self._is_there)] = self._is_there
            self._is_there = more
        is_new = ~self._is_there[slots]
        self._is_there[slots] = True
        self.last = max(self.last, largest)
        return is_new

    def add_sums(self, slots: Ints) -> None:
        """Take in which numbers sums of records are named after, though these are not there."""
        self._sums.append(slots)

    def are_there(self, slots: Ints) -> Mask:
        """Tell which numbers are there, or name a sum."""
        found = (slots >= 0) & (slots <= self.last)
        found[found] = self._is_there[slots[found]]
        if not found.all():
            found |= np.isin(slots, np.concatenate(self._sums))
        return np.asarray(found)

    def up_to(self, slots: Ints) -> Ints:
        """Return how many numbers there are up to each of some, that one included."""
        slots = np.asarray(slots, dtype=np.int64)
        ends = np.clip(slots + 1, 0, len(self._is_there))
        order = np.argsort(ends, kind="stable")
        bounds = np.concatenate([[0], ends[order]])
        counts = [
            np.count_nonzero(self._is_there[first:end]) for first, end in pairwise(bounds.tolist())
        ]
        found = np.empty(len(slots), np.int64)
        found[order] = np.cumsum(counts)
        return found


def numbers_present(tables: Mapping[str, pa.Table]) -> Ints:
    """Return the slot sequence numbers of the records that were read, in order."""
    parts = [
        table.column("slot_seq").to_numpy()
        for name, table in tables.items()
        if name not in MADE_BY_THE_WRITER
    ]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
