"""How long each rank spent on what in a window of a step."""

from __future__ import annotations

from typing import Any

import pandas as pd

from meshscope.analyze.output.timeline.categories import LABELS, Category
from meshscope.analyze.output.timeline.slices import StepSlices, in_window

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
    seen = in_window(step.slices, window_ns)
    begin = seen["start_ns"].clip(lower=window_ns[0])
    inside = seen[["rank", "category"]].assign(
        dur_ns=seen["end_ns"].clip(upper=window_ns[1]) - begin
    )
    sums = inside.groupby(["rank", "category"])["dur_ns"].agg(["sum", "count"]).reset_index()
    return pd.DataFrame(
        {
            "rank": sums["rank"].astype("int64"),
            "class": [LABELS[Category(int(value))] for value in sums["category"]],
            "dur_ns": sums["sum"].astype("int64"),
            "frac": sums["sum"] / (window_ns[1] - window_ns[0]),
            "slices": sums["count"].astype("int64"),
        }
    ).sort_values(["rank", "dur_ns"], ascending=[True, False], ignore_index=True)


def sum_rows(step: StepSlices, window_ns: tuple[int, int]) -> list[tuple[Any, ...]]:
    """Return the rows of a table of a window under ``COLUMNS``: first the mean of all ranks by class."""
    sums = window_sums(step, window_ns)
    ranks = max(len(step.ranks), 1)
    mean = sums.groupby("class")[["dur_ns", "frac", "slices"]].sum() / ranks
    mean = mean.sort_values("dur_ns", ascending=False).reset_index().assign(rank=ALL)
    if ranks > _MOST_RANKS:
        own = sums.groupby("rank")[["dur_ns", "frac", "slices"]].sum().reset_index()
        sums = own.assign(**{"class": "all classes"})
    rows = [*mean.to_dict("records"), *sums.to_dict("records")]
    return [
        (
            row["rank"] if isinstance(row["rank"], str) else f"rank {row['rank']}",
            row["class"],
            row["dur_ns"] / _NS_PER_MS,
            100 * row["frac"],
            row["slices"],
        )
        for row in rows
    ]
