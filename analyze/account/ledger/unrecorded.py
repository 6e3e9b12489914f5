"""Time that nothing recorded claims, by what lies around it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.classes import CLASSES, CODE, UNATTRIBUTED
from .build import Ledger

EDGE = len(CLASSES)
"""Stands for a class where the analysed steps begin or end."""


class UnrecordedPlace(NamedTuple):
    """Unrecorded time between two classes of the ledger."""

    after: str | None
    """Class that ends where it begins; None where the analysed steps begin there."""
    before: str | None
    """Class that begins where it ends; None where the analysed steps end there."""
    frac: float
    """Share of all step time."""
    longest_ns: float
    rank: int
    """Rank of the longest."""
    step: int
    """Step in which the longest begins."""


def unrecorded_places(ledger: Ledger, least_frac: float) -> list[UnrecordedPlace]:
    """Return where unrecorded time lies, the largest share first.

    A stretch goes on over the border of two steps of one rank: what a training loop does between its
    optimizer and its next batch is one place, wherever the border of the step is.

    Args:
        ledger: Segments in the order of ranks and time, which tile the steps of each rank.
        least_frac: Places with a smaller share of the step time are left out.
    """
    table = ledger.segments
    code = table["code"].to_numpy()
    is_gap = code == CODE[UNATTRIBUTED]
    if not is_gap.any():
        return []
    rank, start, end = (table[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    is_apart = np.ones(len(table) + 1, dtype=bool)
    is_apart[1:-1] = (rank[1:] != rank[:-1]) | (start[1:] != end[:-1])
    first = np.flatnonzero(is_gap & (is_apart[:-1] | ~np.append(False, is_gap[:-1])))
    last = np.flatnonzero(is_gap & (is_apart[1:] | ~np.append(is_gap[1:], False)))
    after = np.where(is_apart[first], EDGE, code[first - 1])
    before = np.where(is_apart[last + 1], EDGE, code[(last + 1) % len(code)])
    found = pd.DataFrame(
        {
            "pair": after.astype(np.int64) * (EDGE + 1) + before,
            "ns": (end[last] - start[first]).astype(np.float64),
            "rank": rank[first],
            "step": table["step"].to_numpy()[first],
        }
    )
    total = float(ledger.by_step["step_ns"].sum())
    share = found.groupby("pair")["ns"].sum() / total
    longest = found.loc[found.groupby("pair")["ns"].idxmax()].set_index("pair")
    kept = share[share >= least_frac].sort_values(ascending=False, kind="stable")
    return [_place(int(pair), float(kept[pair]), longest.loc[pair]) for pair in kept.index]


def _place(pair: int, frac: float, longest: pd.Series) -> UnrecordedPlace:
    after, before = divmod(pair, EDGE + 1)
    names = (*CLASSES, None)
    return UnrecordedPlace(
        names[after],
        names[before],
        frac,
        float(longest["ns"]),
        int(longest["rank"]),
        int(longest["step"]),
    )
