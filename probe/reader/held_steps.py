"""How much a part of a rank holds of each step, as it is chosen by what has room."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rank_records import RankRecords
from .step_detail import DETAIL_COLUMN, full_records_of
from .wanted import COUNTED

Ints = NDArray[np.int64]

MEMORY = "memory"
_NONE = np.zeros(0, np.int64)


class HeldSteps(NamedTuple):
    """What a part holds of its steps.

    Attributes:
        step: The number of each finished one, ascending.
        detail: What is held of each, as a position in StepDetail.
        rows: Records of each that need room.
        all_rows: Records that need room, those of steps that did not end included.
        sampled_step: Steps of which memory was sampled, ascending.
        samples: How often, in each.
        full_every: Each how many steps the writer meant to keep record by record; 1 where it did not say.
    """

    step: Ints = _NONE
    detail: Ints = _NONE
    rows: Ints = _NONE
    all_rows: int = 0
    sampled_step: Ints = _NONE
    samples: Ints = _NONE
    full_every: int = 1


def rows_of(part: RankRecords) -> int:
    """Return how many records of passes and communication are there."""
    return sum(part.tables[name].num_rows for name in COUNTED if name in part.tables)


def held_steps(part: RankRecords) -> HeldSteps:
    """Return what was read of a part."""
    rule = full_records_of(part.manifest)
    every = 1 if rule is None else rule[1]
    sampled = part.tables.get(MEMORY)
    own = _NONE if sampled is None else _ints(part, MEMORY, "step")
    sampled_step, samples = np.unique(own, return_counts=True)
    steps = part.tables.get("step")
    if steps is None:
        return HeldSteps(
            all_rows=rows_of(part), sampled_step=sampled_step, samples=samples, full_every=every
        )
    step = _ints(part, "step", "step")
    order = np.argsort(step, kind="stable")
    rows = np.zeros(len(step), np.int64)
    for name in COUNTED:
        if name in part.tables:
            own = np.sort(_ints(part, name, "step"))
            rows += np.searchsorted(own, step[order], "right")
            rows -= np.searchsorted(own, step[order], "left")
    detail = _ints(part, "step", DETAIL_COLUMN)[order]
    return HeldSteps(step[order], detail, rows, rows_of(part), sampled_step, samples, every)


def _ints(part: RankRecords, table: str, column: str) -> Ints:
    return np.asarray(part.tables[table][column].to_numpy(), dtype=np.int64)
