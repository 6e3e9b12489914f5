"""Unequal pipeline stages: the embedding stage, the output head, and any other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..effects import Work
from ..program import Program
from ..replay import FloatArray
from .player import Player, Union, spread


def stage_players(program: Program, work: Work, reference: FloatArray) -> Iterator[Player]:
    """Yield the heavy stages: the first, the last, and all between them, each with its excess.

    The centre of a stage is the median over its ranks of their compute per step;
    equal stages would each have the mean of the centres, for the work stays the
    same and only moves. Repairing a heavy stage moves its excess to the light ones:
    of what these lack, it fills the part that its excess is of all excess. Nothing
    with one stage, or where a stage has no compute on record.

    Args:
        program: The replay graph.
        work: The recorded work by cell.
        reference: That work with the slow ranks repaired, ns per cell.
    """
    compute = _reference_compute(work, reference)
    stage = work.cells["rank"].map(work.stage).to_numpy(np.int64)
    centre = _centres(work, compute, stage)
    if centre is None:
        return
    excess = centre - centre.mean()
    surplus = excess.clip(lower=0)
    # What repairing everything takes from each cell; negative on a light stage.
    whole = compute * (excess / centre).reindex(stage).to_numpy()
    first, last = int(centre.index.min()), int(centre.index.max())
    inner = [int(s) for s in centre.index if s not in (first, last)]
    for members in ([first], [last], inner):
        own = surplus.reindex(members)
        if not len(own) or own.sum() <= 0:
            continue
        lifted = np.where(whole < 0, whole * (own.sum() / surplus.sum()), 0.0)
        taken = np.where(np.isin(stage, members) & (whole > 0), whole, 0.0)
        heaviest = int(own.index.to_numpy()[own.to_numpy().argmax()])
        effect = spread(program, work, taken + lifted)
        yield Player("stage_imbalance", {"stage": heaviest}, Union.STAGES, effect)


def _reference_compute(work: Work, reference: FloatArray) -> FloatArray:
    recorded = work.cells["work_ns"].to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(recorded > 0, reference / recorded, 0.0)
    return np.asarray(work.cells["compute_ns"].to_numpy() * scale)


def _centres(work: Work, compute: FloatArray, stage: np.ndarray) -> pd.Series | None:
    """Return the compute per step of each stage; None where stages cannot be compared."""
    if not len(stage) or stage.min() < 0 or stage.min() == stage.max():
        return None
    frame = work.cells[["rank", "step"]].assign(compute=compute, stage=stage)
    per_step = frame.groupby(["stage", "rank", "step"])["compute"].sum()
    centre = per_step.groupby(level=[0, 1]).mean().groupby(level=0).median()
    return centre if (centre > 0).all() else None
