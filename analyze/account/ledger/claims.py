"""What claims the time of ranks: intervals with a class, before anything is swept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import IntArray

FAR_NS = 2**61
"""Later than any time."""


class Claims(NamedTuple):
    """Intervals of some ranks that claim time, with class, priority, event row and rank."""

    intervals: IntArray
    code: IntArray
    priority: IntArray
    event: IntArray
    rank: IntArray

    def and_those(self, more: Claims) -> Claims:
        """Return these claims, then others of the same rank."""
        return Claims(*map(np.concatenate, zip(self, more, strict=True)))

    def within(self, merged: IntArray) -> Claims:
        """Return these claims cut to a merged set; one that two parts of it touch is in both."""
        first = np.searchsorted(merged[:, 1], self.intervals[:, 0], side="right")
        last = np.searchsorted(merged[:, 0], self.intervals[:, 1], side="left")
        count = np.maximum(last - first, 0)
        row = np.repeat(np.arange(len(self.code)), count)
        part = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - first, count)
        start = np.maximum(self.intervals[row, 0], merged[part, 0])
        end = np.minimum(self.intervals[row, 1], merged[part, 1])
        others = (self.code[row], self.priority[row], self.event[row], self.rank[row])
        return Claims(np.column_stack([start, end]), *others)

    def on_one_line(
        self, windows: pd.DataFrame
    ) -> tuple[Claims, IntArray, tuple[IntArray, IntArray, IntArray]]:
        """Return these claims and window borders with the ranks side by side.

        Nothing of one rank touches anything of another, claims beyond its windows included.

        Args:
            windows: rank, start_ns and end_ns of the windows of these ranks.

        Returns:
            The claims, and how far each was moved, ns; and the starts and ends of the windows, and how
            far these were.
        """
        starts, ends = windows["start_ns"].to_numpy(np.int64), windows["end_ns"].to_numpy(np.int64)
        rank = windows["rank"].to_numpy(np.int64)
        ranks, own = np.unique(rank, return_inverse=True)
        if len(ranks) == 1:
            return self, np.zeros(len(self.rank), np.int64), (starts, ends, np.zeros_like(starts))
        low, high = np.full(len(ranks), FAR_NS), np.full(len(ranks), -FAR_NS)
        np.minimum.at(low, own, starts)
        np.maximum.at(high, own, ends)
        place_of = np.zeros(int(ranks[-1]) + 1, np.intp)
        place_of[ranks] = np.arange(len(ranks))
        place = place_of[self.rank]
        np.minimum.at(low, place, self.intervals[:, 0])
        np.maximum.at(high, place, self.intervals[:, 1])
        length = high - low
        moved = np.cumsum(length) - length - low
        of_claim, of_window = moved[place], moved[own]
        claims = self._replace(intervals=self.intervals + of_claim[:, None])
        return claims, of_claim, (starts + of_window, ends + of_window, of_window)
