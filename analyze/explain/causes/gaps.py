"""Time of a stage in which nothing was recorded, far beyond that of the other stages.

A stage that is late between its passes makes the others wait as a slow one does, and no
comparison of passes shows it: it would be left to the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ...tables.arrays import FloatArray
from ...tables.results import Where
from ..replay.program import Program
from .effects import Work, sums_of_steps
from .shapley_player import Player, Union, spread

UNRECORDED_DELAY = "unrecorded_delay"
MIN_EXCESS = 0.05
"""Least excess over the median of the other stages, as a share of the step."""
MIN_OVER_OTHERS = 2.0
"""And so many times what the others lose by the operation: each call takes some time of its own, and
the middle of a pipeline sends and receives twice as often as its ends."""


def gap_players(program: Program, work: Work, reference: FloatArray) -> Iterator[Player]:
    """Yield the stage that loses most outside of what was recorded, with its excess.

    Repaired, it loses as much as the others by the operation.

    Args:
        program: The replay graph.
        work: The recorded work by cell.
        reference: That work with the slow ranks repaired, ns per cell.
    """
    recorded, compute = (work.cells[name].to_numpy() for name in ("work_ns", "compute_ns"))
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(recorded > 0, reference / recorded, 0.0)
    gap = np.clip((recorded - compute) * scale, 0.0, None)
    cells = work.cells[["rank", "step"]].assign(stage=work.cells["rank"].map(work.stage))
    per_step = sums_of_steps(cells, "stage", gap=gap)["gap"]
    # The median of the steps, because a pause of a single one is no trait of the stage.
    centre = per_step.groupby(level=[0, 1]).median().groupby(level=0).median()
    if len(centre) < 2 or int(centre.index.min()) < 0 or centre.max() <= 0:
        return
    stage = int(centre.index.to_numpy()[centre.to_numpy().argmax()])
    others = _of_as_many_calls(work, centre, stage)
    excess = float(centre[stage]) - others
    is_large = excess >= MIN_EXCESS * program.windows.step_time_ns
    if not is_large or centre[stage] < MIN_OVER_OTHERS * others:
        return
    own = np.where(cells["stage"].to_numpy() == stage, gap, 0.0)
    where: Where = {"stage": stage}
    ranks = sorted(rank for rank, at in work.stage.items() if at == stage)
    if len(ranks) == 1:
        where["rank"] = ranks[0]
    effect = spread(work, own * (excess / float(centre[stage])))
    yield Player(UNRECORDED_DELAY, where, Union.HOST, effect)


def _of_as_many_calls(work: Work, centre: pd.Series, stage: int) -> float:
    """Return what the other stages would lose if they issued as many operations as one stage."""
    steps = work.cells.groupby(["rank", "step"])["interval"].max() + 1
    calls = steps.groupby(level=0).median()
    by_stage = calls.groupby(calls.index.map(work.stage)).median()
    return float((centre / by_stage).drop(stage).median() * by_stage[stage])
