"""How long each rank spent on what in a window of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from meshscope.analyze.output.timeline.categories import LABELS, Category
from meshscope.analyze.output.timeline.slices import StepSlices, is_in_window

COLUMNS = ("rank", "class", "time, ms", "share of the window, %", "slices")
ALL = "all (mean)"
"""Where the rows of all ranks stand: the mean over them."""
_NS_PER_MS = 1e6
_MOST_RANKS = 64
"""Ranks up to which each has a row a class; of more each has one for all its classes."""


def window_sums(step: StepSlices, window_ns: tuple[int, int]) -> pd.DataFrame:
    """Return the time of each rank in each class within a window, ns.

    Args:
        step: Its slices do not overlap within a row.
        window_ns: Begin and end, from the start of the step.

    Returns:
        rank, class (in words), dur_ns, frac (of the window) and slices (that reach into it), in
        the order of ranks, the longest class first.
    """
    is_seen = np.flatnonzero(is_in_window(step.slices, window_ns))
    names = ("row", "category", "start_ns", "end_ns")
    row, category, start, end = (step.slices[name].to_numpy()[is_seen] for name in names)
    place = row * len(Category) + category
    inside = np.minimum(end, window_ns[1]) - np.maximum(start, window_ns[0])
    # Sums of ns stay exact in a float up to 104 days.
    count, total = np.bincount(place), np.bincount(place, weights=inside)
    found = np.flatnonzero(count)
    return pd.DataFrame(
        {
            "rank": np.array(step.ranks, dtype=np.int64)[found // len(Category)],
            "class": [LABELS[Category(one)] for one in (found % len(Category)).tolist()],
            "dur_ns": total[found].astype(np.int64),
            "frac": total[found] / (window_ns[1] - window_ns[0]),
            "slices": count[found],
        }
    ).sort_values(["rank", "dur_ns"], ascending=[True, False], ignore_index=True)


def sum_rows(step: StepSlices, window_ns: tuple[int, int]) -> list[tuple[Any, ...]]:
    """Return the rows of a table of a window under ``COLUMNS``: first the mean of all ranks by class."""
    sums = window_sums(step, window_ns)
    ranks = max(len(step.ranks), 1)
    mean = sums.groupby("class")[["dur_ns", "frac", "slices"]].sum() / ranks
    mean = mean.sort_values("dur_ns", ascending=False).reset_index()
    if ranks > _MOST_RANKS:
        own = sums.groupby("rank")[["dur_ns", "frac", "slices"]].sum().reset_index()
        sums = own.assign(**{"class": "all classes"})
    names = [f"rank {rank}" for rank in sums["rank"].tolist()]
    return [*_rows([ALL] * len(mean), mean), *_rows(names, sums)]


def _rows(names: list[str], sums: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    times, shares = sums["dur_ns"] / _NS_PER_MS, 100 * sums["frac"]
    others = (sums["class"], times, shares, sums["slices"])
    return zip(names, *(column.tolist() for column in others), strict=True)
