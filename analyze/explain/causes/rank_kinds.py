"""Which ranks may be of one kind in a job whose mesh is not known.

A job may hold several models: one generates and others judge, one sees and another one reads. Their
ranks call the same operations in the same order, so nothing but the amounts that they reduce
tells them apart. Gradients are as large in every step, while what is exchanged between is as
long as its sequences: for example, in bytes of three steps::

    rank 0    800 4096    720 4096    910 4096      reduces 4096 in most steps
    rank 1    760 4096    880 4096    640 4096      the same kind
    rank 2    800 1024    720 1024    910 1024      another one
"""

from __future__ import annotations

from typing import cast

from ...align.topology.pass_traffic import REDUCTIONS
from ..replay.program import Program

_MOST = 0.5
"""An amount counts that is reduced in more than this share of the steps in which the rank reduces."""


def kinds_of_ranks(program: Program) -> dict[int, int]:
    """Return a number for each rank, equal for those that usually reduce the same amounts."""
    ranks = [int(rank) for rank in program.windows.ranks]
    frame = program.events[["rank", "step", "kind", "size_bytes"]]
    rows = frame[frame["kind"].isin(REDUCTIONS) & frame["size_bytes"].notna()]
    steps = rows.groupby("rank")["step"].nunique()
    seen = rows.groupby(["rank", "size_bytes"])["step"].nunique().rename("steps").reset_index()
    usual = seen[seen["steps"] > _MOST * seen["rank"].map(steps)]
    amounts: dict[int, frozenset[float]] = {
        cast(int, rank): frozenset(own.tolist())
        for rank, own in usual.groupby("rank")["size_bytes"]
    }
    of_rank = {rank: amounts.get(rank, frozenset()) for rank in ranks}
    number = {own: place for place, own in enumerate(dict.fromkeys(of_rank.values()))}
    return {rank: number[own] for rank, own in of_rank.items()}
