"""Hosts whose ranks are a whole stage: a heavy stage and a slow host leave the same record.

The two have two repairs, and each has a price of its own: layers move to the other stages, which keeps
the work, while a slow host gets as fast as the others, which takes its excess away.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...tables.arrays import FloatArray, IntArray
from ...tables.trace import Trace
from ..replay.edge_effect import EdgeEffect
from .effects import Work
from .kinds_of_steps import kinds_of_steps
from .shapley_player import spread


def host_of_stage(trace: Trace, stage_of: Mapping[int, int], stage: int) -> str | None:
    """Return the host that runs all captured ranks of a stage and no others; None if there is none.

    Where all ranks are on one host it is none either: the other stages show how fast it is.
    """
    host_of = {rank: trace.clock_of(rank) for rank in stage_of if rank in trace.clocks}
    members = {rank for rank, own in stage_of.items() if own == stage}
    hosts = {host_of.get(rank, "") for rank in members}
    if len(hosts) != 1 or "" in hosts or len(set(host_of.values())) < 2:
        return None
    (host,) = hosts
    return host if {rank for rank, own in host_of.items() if own == host} == members else None


def as_slow_host(
    trace: Trace, work: Work, compute: FloatArray, stage: IntArray, heavy: int
) -> EdgeEffect | None:
    """Return what a heavy stage takes longer if its host is slow; None where no host is the stage.

    A stage that is heavy in some steps is compared with its other steps, because layers do not come
    and go; one that is heavy in all of them, with the median of the other stages.

    Args:
        trace: Which host runs a rank.
        work: The recorded work.
        compute: What each cell computes without slow ranks and jitter, ns.
        stage: The stage of each cell.
        heavy: The stage.
    """
    if host_of_stage(trace, work.stage, heavy) is None:
        return None
    cells = work.cells[["rank", "step"]].assign(compute=compute, stage=stage)
    per_step = cells.groupby(["stage", "rank", "step"])["compute"].sum()
    kind = kinds_of_steps(per_step)[heavy]
    by_stage = per_step.groupby(level=["stage", "step"]).median().unstack("stage")
    own = by_stage[heavy]
    if kind.any():
        usual = pd.Series(own[kind == 0].median(), own.index).where(kind > 0, own)
    else:
        usual = by_stage.drop(columns=heavy).median(axis=1)
    excess_frac = (1.0 - usual / own).clip(lower=0.0).fillna(0.0)
    of_cell = excess_frac.reindex(cells["step"]).to_numpy()
    return spread(work, np.where(stage == heavy, compute * of_cell, 0.0))
