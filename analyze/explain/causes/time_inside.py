"""Time of classes of the ledger inside the work edges of a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...account.ledger.build import Ledger
from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.classes import CLASSES
from ...tables.intervals import covered_length, union

LONGEST_LINE_NS = 2**61
"""Length of a line on which the times of several ranks are compared at once."""
EDGES_AT_ONCE = 1 << 20
"""About how many work edges are compared at once, which bounds the memory that it takes."""


def time_inside(
    marks: pd.DataFrame, edge: IntArray, ledger: Ledger, codes: list[int]
) -> FloatArray:
    """Return the time of some classes inside each work edge."""
    return times_inside(marks, edge, ledger, [codes])[0]


def times_inside(
    marks: pd.DataFrame, edge: IntArray, ledger: Ledger, kinds: Sequence[list[int]]
) -> list[FloatArray]:
    """Return the time of several kinds of classes inside each work edge.

    The ranks are laid one after the other on one line; as many at a time as fit it.
    """
    inside = [np.zeros(len(edge)) for _ in kinds]
    work = marks["work_ns"].to_numpy()[edge]
    busy = np.flatnonzero(work > 0)
    code = ledger.segments["code"].to_numpy()
    chosen = [np.flatnonzero(_is_any_of(codes)[code]) for codes in kinds]
    if not len(busy) or not any(map(len, chosen)):
        return inside
    of_rank, low, high = (
        ledger.segments[name].to_numpy() for name in ("rank", "start_ns", "end_ns")
    )
    end = marks["start_ns"].to_numpy()[edge[busy]]
    start, rank = end - work[busy], marks["rank"].to_numpy()[edge[busy]]
    origin = min(int(start.min()), int(low.min()))
    length = max(int(end.max()), int(high.max())) - origin + 1
    ranks = int(rank.max()) + 1
    at_once = max(1, min(LONGEST_LINE_NS // length, ranks * EDGES_AT_ONCE // len(busy)))
    # Marks and segments are in the order of ranks, so those of some ranks are slices.
    borders = np.arange(0, ranks + at_once, at_once)
    of_edges = np.searchsorted(rank, borders).tolist()
    for found, rows in zip(inside, chosen, strict=True):
        part_rank = of_rank[rows]
        of_parts = np.searchsorted(part_rank, borders).tolist()
        for at, first in enumerate(borders[:-1].tolist()):
            own, parts = slice(*of_edges[at : at + 2]), slice(*of_parts[at : at + 2])
            place = (part_rank[parts].astype(np.int64) - first) * length - origin
            merged = union(np.column_stack([low[rows[parts]] + place, high[rows[parts]] + place]))
            moved = (rank[own].astype(np.int64) - first) * length - origin
            found[busy[own]] = covered_length(merged, start[own] + moved, end[own] + moved)
    return inside


def _is_any_of(codes: list[int]) -> BoolArray:
    """Return for each code of a class whether it is one of some."""
    table = np.zeros(len(CLASSES), dtype=bool)
    table[codes] = True
    return table
