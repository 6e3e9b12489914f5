"""Stalls of the host inside a rank's own work: data, garbage collection, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...align.communication.waiting import chance_of_as_many
from ...tables.arrays import FloatArray, IntArray
from ...tables.results import Where
from ..replay.effect_folding import edge_effect
from ..replay.program import Program
from .effects import Work
from .shapley_player import Player, Union

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
ALL = 0.9
"""From this share on where it was is no question."""
MAX_CHANCE = 0.1
"""Below it, that one rank stalls in so many of the steps is no accident."""


def host_players(program: Program, work: Work) -> Iterator[Player]:
    """Yield one player for each kind of host stall that lies in the way of a rank's work."""
    for kind, classes in HOST_CAUSES.items():
        found = [work.edge_host_ns[name] for name in classes if name in work.edge_host_ns]
        if not found:
            continue
        stall = sum(found[1:], start=found[0])
        if not stall.any():
            continue
        place = stalled_rank(program.windows.ranks, _by_rank_and_step(stall, program))
        yield Player(kind, place, Union.HOST, edge_effect(stall))


def _by_rank_and_step(stall: FloatArray, program: Program) -> FloatArray:
    """Return the time of work edges as a table of ranks (rows) and steps."""
    ranks, steps = program.windows.ranks, program.windows.steps
    of_edge = [
        np.searchsorted(known, program.marks[name].to_numpy()[program.work_edges])
        for name, known in (("rank", ranks), ("step", steps))
    ]
    shape = (len(ranks), len(steps))
    cells = np.ravel_multi_index(tuple(of_edge), shape, mode="clip")
    table = np.bincount(cells, weights=stall, minlength=len(ranks) * len(steps))
    return np.asarray(table.reshape(shape), dtype=np.float64)


def stalled_rank(ranks: IntArray, times: FloatArray) -> Where:
    """Return the one rank that most of the time belongs to, nothing where there is none.

    A few pauses that come by chance often hit one rank twice, which is then no place.

    Args:
        ranks: All ranks.
        times: Time of the stall by rank (rows) and step.
    """
    if len(ranks) < 2 or not times.any():
        return {}
    total, pauses = times.sum(axis=1), np.count_nonzero(times, axis=1)
    top, count = int(total.argmax()), pauses.sum()
    share, rest = total[top] / total.sum(), total.sum() - total[top]
    chance = chance_of_as_many(pauses[top], count, count / np.float64(len(ranks)))
    by_length = total[top] / pauses[top] > MIN_OVER_OTHERS * rest / max(count - pauses[top], 1)
    by_number = len(ranks) * chance < MAX_CHANCE
    is_most = share > MIN_CONCENTRATION and total[top] > MIN_OVER_OTHERS * rest / (len(ranks) - 1)
    if share >= ALL or (is_most and (by_length or by_number)):
        return {"rank": int(ranks[top])}
    return {}
