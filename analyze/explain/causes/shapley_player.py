"""A cause as a player of the replay."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from ...tables.arrays import FloatArray
from ...tables.results import Where
from ..replay.effect_folding import EdgeEffect
from .effects import Work


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
    effect: EdgeEffect
    relief_ns: float | None = None
    """What else is faster while it is there, per mean step, which the effect is without; None
    where nothing tells."""
    as_host: EdgeEffect | None = None
    """What a stage adds if its host is slow, and not the stage heavy; None where that cannot be."""
    is_most: bool = False
    """Whether its effect is the most that it can be, and nothing tells the least."""


def spread(work: Work, cell_effect: FloatArray) -> EdgeEffect:
    """Spread an effect of cells over their work edges, in proportion to the recorded work."""
    touched, total = cell_effect != 0, work.cells["work_ns"].to_numpy()
    edge = work.busy_edge if (total[touched] > 0).all() else np.arange(len(work.cell))
    own = work.work_of(edge)
    chosen = touched[work.cell[edge]]
    edge, own = edge[chosen], own[chosen]
    cell = work.cell[edge]
    total = total[cell]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = own / total
    alone = np.flatnonzero(~(total > 0))
    if len(alone):
        part[alone] = 1.0 / np.bincount(cell)[cell[alone]]
    part *= cell_effect[cell]
    touched = part != 0
    return EdgeEffect(edge[touched].astype(np.int32), part[touched])
