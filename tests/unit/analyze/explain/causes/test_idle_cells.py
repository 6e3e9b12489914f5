"""Cells in which nobody of a class works are one cell a step."""

import numpy as np
import pandas as pd

from meshscope.analyze.explain.causes.idle_cells import idle_as_one


def cells_of(*work):
    """Return the cells of two ranks of one class, with so much work in each interval."""
    rank, interval = np.divmod(np.arange(2 * len(work[0])), len(work[0]))
    ns = np.concatenate(work).astype(np.float64)
    columns = {"rank": rank, "step": 0, "interval": interval, "peer_class": 0}
    return pd.DataFrame({**columns, "work_ns": ns, "compute_ns": ns}), rank


def test_only_what_nobody_works_in_is_put_together():
    """Fails when a rank that works where its peers do not loses the place of that, or its last cell."""
    cells, run = cells_of([0, 5, 0, 0, 0], [0, 5, 0, 7, 0])
    found, cell = idle_as_one(cells, np.arange(10), run)
    assert found["interval"].tolist() == [0, 1, 3, 4] * 2
    assert found["alike"].tolist() == [2, 1, 1, 1] * 2
    assert cell.tolist() == [0, 1, 0, 2, 3, 4, 5, 4, 6, 7]
    assert found["work_ns"].sum() == cells["work_ns"].sum()


def test_what_cannot_be_compared_stays_as_it_is():
    """Fails when steps that deviate from all peers are taken for a class of their own."""
    cells, run = cells_of([0, 0, 0], [0, 0, 0])
    found, cell = idle_as_one(cells.assign(peer_class=-1), np.arange(6), run)
    assert found["interval"].tolist() == [0, 1, 2] * 2
    assert cell.tolist() == list(range(6))
