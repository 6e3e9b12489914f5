"""Cells in which nobody works: most operations follow another one at once.

Of the stretches between two issues of communication on a rank, most hold no work, on no rank of its class.
They would be two thirds of all that is compared, sorted and added up. So those of a step are one cell; the last
one of the step stays as it is, which tells how many operations it issued.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...tables.arrays import IntArray


def idle_as_one(
    cells: pd.DataFrame, cell: IntArray, run: IntArray
) -> tuple[pd.DataFrame, IntArray]:
    """Return the cells with the idle ones of each step as one, the first of them, and the cell of each edge.

    Args:
        cells: rank, step, interval, peer_class, work_ns, compute_ns; in the order of the first three.
        cell: Cell of each work edge.
        run: Number of the step of the rank of each cell, rising.

    Returns:
        The cells with ``alike``: how many each stands for.
    """
    if not len(cells):
        return cells.assign(alike=1), cell
    peers, interval = (cells[name].to_numpy() for name in ("peer_class", "interval"))
    classes, most = int(peers.max()) + 1, int(interval.max()) + 1
    # Half as wide numbers take half the time.
    width = np.int32 if max(classes * most, len(cells)) < 2**31 else np.int64
    peers, interval = peers.astype(width, copy=False), interval.astype(width, copy=False)
    place = np.maximum(peers, 0) * most + interval
    works = (cells["work_ns"].to_numpy() != 0) | (cells["compute_ns"].to_numpy() != 0)
    works[np.append(run[1:] != run[:-1], True)] = True
    is_used = np.zeros(max(classes, 1) * most, dtype=bool)
    is_used[place[works]] = True
    idle = ~is_used[place] & (peers >= 0)
    first_idle = np.argmin(is_used.reshape(-1, most), axis=1)
    is_first = idle & (interval == first_idle.astype(width)[peers])
    opens = np.where(is_first, np.arange(len(cells), dtype=width), width(-1))
    opened = np.maximum.accumulate(opens)
    merged = idle & (opens < 0) & (opened >= 0) & (run[opened] == run)
    number = np.cumsum(~merged, dtype=np.int32) - np.int32(1)
    number[merged] = number[opened[merged]]
    rows = np.flatnonzero(~merged)
    alike = np.bincount(number, minlength=len(rows)).astype(np.int32)
    columns = {str(name): cells[name].to_numpy()[rows] for name in cells}
    return pd.DataFrame({**columns, "alike": alike}, copy=False), number[cell]
