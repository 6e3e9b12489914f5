"""Stalls of the host inside a rank's own work: data, garbage collection, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..edge_effect import edge_effect
from ..effects import Work
from ..program import Program
from ..replay import FloatArray
from ..results import Where
from .player import Player, Union

HOST_CAUSES = {
    "data_stall": ("data_load",),
    "gc_pause": ("gc",),
    "checkpoint_stall": ("checkpoint",),
    "host_stall": ("host_blocked", "offload", "other"),
}
"""Ledger classes behind each cause. Repaired, such time is gone."""
MIN_CONCENTRATION = 0.5
"""Share of all time of a kind from which one rank is named as its place."""
MIN_OVER_OTHERS = 3.0
"""And so many times the mean of the other ranks: of two ranks, one always has half of it."""


def host_players(program: Program, work: Work) -> Iterator[Player]:
    """Yield one player for each kind of host stall that lies in the way of a rank's work."""
    rank = program.marks["rank"].to_numpy()[program.work_edges]
    for kind, classes in HOST_CAUSES.items():
        stall = np.zeros(len(program.work_edges))
        for name in classes:
            if name in work.edge_host_ns:
                stall += work.edge_host_ns[name]
        if not stall.any():
            continue
        yield Player(kind, _place(rank, stall, program), Union.HOST, edge_effect(stall))


def _place(rank: np.ndarray, stall: FloatArray, program: Program) -> Where:
    """Return the one rank that most of the time belongs to, nothing where there is none."""
    ranks = program.windows.ranks
    total = np.bincount(np.searchsorted(ranks, rank), weights=stall, minlength=len(ranks))
    top = int(total.argmax())
    others = (total.sum() - total[top]) / max(len(ranks) - 1, 1)
    is_most = total[top] > MIN_CONCENTRATION * total.sum()
    if len(ranks) > 1 and is_most and total[top] > MIN_OVER_OTHERS * others:
        return {"rank": int(ranks[top])}
    return {}
