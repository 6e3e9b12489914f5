"""Time of classes of the ledger inside the work edges of a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...account.ledger.build import Ledger
from ...tables.arrays import FloatArray, IntArray
from ...tables.classes import code_among
from ...tables.intervals import covered_by_rank


def time_inside(
    marks: pd.DataFrame, edge: IntArray, ledger: Ledger, codes: list[int]
) -> FloatArray:
    """Return the time of some classes inside each work edge."""
    busy, (found,) = times_inside(marks, edge, ledger, [codes])
    return on_edges(busy, found, len(edge))


def times_inside(
    marks: pd.DataFrame, edge: IntArray, ledger: Ledger, kinds: Sequence[list[int]]
) -> tuple[IntArray, list[FloatArray]]:
    """Return the edges that have any work, and the time of several kinds of classes inside each of these.

    Args:
        marks: The marks of the program, by rank.
        edge: The marks at which the edges end.
        ledger: Its segments, by rank.
        kinds: Codes of classes that are taken together.
    """
    busy = np.flatnonzero((marks["work_ns"].to_numpy() > 0)[edge])
    row = edge[busy]
    end = marks["start_ns"].to_numpy()[row]
    start, rank = end - marks["work_ns"].to_numpy()[row], marks["rank"].to_numpy()[row]
    code, of_rank, low, high = (
        ledger.segments[name].to_numpy() for name in ("code", "rank", "start_ns", "end_ns")
    )
    found = []
    for codes in kinds:
        rows = np.flatnonzero(code_among(code, codes))
        parts = (low[rows], high[rows])
        inside = covered_by_rank(of_rank[rows], parts, rank, start, end)
        found.append(inside.astype(np.float64))
    return busy, found


def on_edges(busy: IntArray, ns: FloatArray, edges: int) -> FloatArray:
    """Return values of some edges as one of each, 0 of the others."""
    whole = np.zeros(edges)
    whole[busy] = ns
    return whole
