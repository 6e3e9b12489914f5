"""Stages that hold more memory than the others lead to expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import FloatArray
from .by_stage import CATEGORIES, used_bytes

_AMBIGUOUS = 4
"""Up to so many stages the stages between the ends do not fix a line by a majority."""


class StageExcess(NamedTuple):
    """What a stage holds beside what the stages between the ends lead to expect."""

    stage: int
    held_bytes: float
    expected_bytes: float
    by_category: dict[str, float]
    """What is more than expected, bytes; categories that are not known are missing."""
    bytes_per_stage: float
    """By how much memory grows from stage to stage; it falls in 1F1B."""

    @property
    def ratio(self) -> float:
        """Return held over expected."""
        return self.held_bytes / self.expected_bytes


def stage_excess(
    by_stage: pd.DataFrame, in_flight: Sequence[float] | None = None
) -> list[StageExcess]:
    """Return every stage beside the line ``a + b k`` through the stages between the ends.

    k are the microbatches in flight, b >= 0 what one of them holds. Embedding, output head and
    logits are at the ends, so that the ends do not fix the line. It is the median of the slopes
    (Theil and Sen). Nothing with fewer than three stages.

    Args:
        by_stage: ``memory_by_stage``.
        in_flight: Microbatches in flight by stage; None: p - stage, as in 1F1B.
    """
    rows = by_stage.sort_values("stage")
    held = used_bytes(rows).to_numpy(np.float64, na_value=np.nan)
    if len(held) < 3 or np.isnan(held).any():
        return []
    known = in_flight if in_flight is not None and len(in_flight) == len(held) else None
    flight = np.asarray(known if known is not None else np.arange(len(held), 0, -1), np.float64)
    columns = {
        name: rows[f"{name}_bytes"].astype("Float64").to_numpy(np.float64, na_value=np.nan)
        for name in CATEGORIES
    }
    slope, expected = _line(np.asarray(held, np.float64), flight)
    if (expected <= 0).any():
        return []
    parts = {
        name: values - _line(np.asarray(values, np.float64), flight)[1]
        for name, values in columns.items()
        if not np.isnan(values).any()
    }
    per_stage = slope * float(flight[-1] - flight[0]) / (len(held) - 1)
    return [
        StageExcess(
            int(stage),
            float(held[at]),
            float(expected[at]),
            {name: float(over[at]) for name, over in parts.items()},
            per_stage,
        )
        for at, stage in enumerate(rows["stage"].to_numpy(np.int64))
    ]


def _line(values: FloatArray, flight: FloatArray) -> tuple[float, FloatArray]:
    """Return bytes of a microbatch in flight, and the line at all stages."""
    inner, at = values[1:-1], flight[1:-1]
    first, second = np.triu_indices(len(inner), 1)
    differ = at[second] != at[first]
    slopes = (inner[second] - inner[first])[differ] / (at[second] - at[first])[differ]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    if len(values) <= _AMBIGUOUS:
        slope = _least_slope(values, flight, slope)
    slope = max(slope, 0.0)
    # Of two stages the lower: one of them may hold more than its part.
    level = float(np.percentile(inner - slope * at, 50, method="lower"))
    line: FloatArray = np.asarray(level + slope * flight, dtype=np.float64)
    return slope, line


def _least_slope(values: FloatArray, flight: FloatArray, slope: float) -> float:
    """Return the slope of few stages: no more than the first stage allows.

    The first stage cannot hold less than its microbatches in flight. Of three stages only a falling
    line shows a slope: what its last stage lacks.
    """
    if len(values) == 3:
        rise = flight[1] - flight[2]
        slope = float((values[1] - values[2]) / rise) if rise > 0 else 0.0
    rise = flight[0] - flight[1]
    return min(slope, float((values[0] - values[1]) / rise)) if rise > 0 else slope
