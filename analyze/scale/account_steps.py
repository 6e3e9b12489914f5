"""Which steps of a large run the full account is made of: those that matter, as many as have room.

Full records of all steps of many ranks do not fit in memory. Summaries say where to look: at the steps in
which the dearest slow rank is slow, from their begin on; without a slow rank at the longest steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..tables.arrays import FloatArray, IntArray
from ..tables.part import StepRange
from .slow_ranks import FirstAnswer
from .store import Summaries
from .summary import COUNTED


class AccountSteps(NamedTuple):
    """Steps that follow each other, and why these."""

    steps: StepRange
    rank: int | None
    """The slow rank that they were chosen for; None where none is slow."""
    rows: int
    """Records that they have, of all ranks."""


def account_steps(made: Summaries, answer: FirstAnswer, most_rows: int) -> AccountSteps | None:
    """Return the steps to account for; None where the records of all have room.

    Args:
        made: The summaries of the run.
        answer: What they tell.
        most_rows: Records that have room.

    Raises:
        RunDirectoryError: A file of the summaries cannot be read.
    """
    table = made.read(("step", "wall_s", *(f"{name}_rows" for name in COUNTED)))
    steps, at = np.unique(table["step"].to_numpy(), return_inverse=True)
    by_table = [np.bincount(at, table[f"{name}_rows"].to_numpy()) for name in COUNTED]
    rows = np.asarray(np.sum(by_table, axis=0), dtype=np.float64)
    if rows.sum() <= most_rows:
        return None
    wall = np.zeros(len(steps))
    np.maximum.at(wall, at, table["wall_s"].to_numpy())
    if answer.slow:
        verdict = answer.slow[0].verdict
        first, last = max(verdict.slow_steps, key=lambda run: run[1] - run[0])
        begin = int(np.searchsorted(steps, first))
        end = min(_end(rows, begin, most_rows), int(np.searchsorted(steps, last, side="right")))
        rank = verdict.rank
    else:
        begin, end = _longest(wall, rows, most_rows)
        rank = None
    return AccountSteps(
        steps=StepRange(int(steps[begin]), int(steps[end - 1])),
        rank=rank,
        rows=int(rows[begin:end].sum()),
    )


def _end(rows: FloatArray, begin: int, most_rows: int) -> int:
    """Return the end of the steps from one on that have room together; one has, whatever its size."""
    fits = np.searchsorted(np.cumsum(rows[begin:]), most_rows, side="right")
    return begin + max(int(fits), 1)


def _longest(wall: FloatArray, rows: FloatArray, most_rows: int) -> tuple[int, int]:
    """Return begin and end of the window of the longest mean step among those with room."""
    total = np.append(0.0, np.cumsum(wall))
    held = np.append(0.0, np.cumsum(rows))
    ends: IntArray = np.searchsorted(held, held[:-1] + most_rows, side="right") - 1
    begins = np.arange(len(wall))
    ends = np.maximum(ends, begins + 1)
    # The last windows are short because the run ends: only one step would win by chance.
    is_full = ends < len(wall)
    is_full[int(np.argmax(~is_full)) if not is_full.all() else -1] = True
    mean = np.where(is_full, (total[ends] - total[:-1]) / (ends - begins), -np.inf)
    best = int(mean.argmax())
    return best, int(ends[best])
