"""Time of classes of the ledger inside the work edges of a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...account.ledger.build import Ledger
from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.classes import CLASSES
from ...tables.intervals import covered_by_rank


def time_inside(
    marks: pd.DataFrame, edge: IntArray, ledger: Ledger, codes: list[int]
) -> FloatArray:
    """Return the time of some classes inside each work edge."""
    return times_inside(marks, edge, ledger, [codes])[0]


def times_inside(
    marks: pd.DataFrame, edge: IntArray, ledger: Ledger, kinds: Sequence[list[int]]
) -> list[FloatArray]:
    """Return the time of several kinds of classes inside each work edge; marks and segments by rank."""
    inside = [np.zeros(len(edge)) for _ in kinds]
    work = marks["work_ns"].to_numpy()[edge]
    busy = np.flatnonzero(work > 0)
    end = marks["start_ns"].to_numpy()[edge[busy]]
    start, rank = end - work[busy], marks["rank"].to_numpy()[edge[busy]]
    code, of_rank, low, high = (
        ledger.segments[name].to_numpy() for name in ("code", "rank", "start_ns", "end_ns")
    )
    for found, codes in zip(inside, kinds, strict=True):
        rows = np.flatnonzero(_is_any_of(codes)[code])
        parts = (low[rows], high[rows])
        found[busy] = covered_by_rank(of_rank[rows], parts, rank, start, end)
    return inside


def _is_any_of(codes: list[int]) -> BoolArray:
    """Return for each code of a class whether it is one of some."""
    table = np.zeros(len(CLASSES), dtype=bool)
    table[codes] = True
    return table
