"""A cause as a player of the replay."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from ..effects import Work
from ..program import Program
from ..replay import FloatArray
from ..results import Where


class Union(StrEnum):
    """Players that belong together where there are too many for all coalitions."""

    WORKERS = "workers"
    STAGES = "stages"
    DATA = "data"
    HOST = "host"
    WIRES = "wires"


class Player(NamedTuple):
    """One cause: its name, its place, its family, and what it adds to the edges of the graph."""

    kind: str
    where: Where
    union: Union
    effect_ns: FloatArray
    """One value per edge of the program."""


def spread(program: Program, work: Work, cell_effect: FloatArray) -> FloatArray:
    """Spread an effect of cells over their work edges, in proportion to the recorded work."""
    total = work.cells["work_ns"].to_numpy()[work.cell]
    count = np.bincount(work.cell)[work.cell]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(total > 0, work.edge_work_ns / total, 1.0 / count)
    effect = np.zeros(program.edge_count)
    effect[: len(work.cell)] = part * cell_effect[work.cell]
    return effect
