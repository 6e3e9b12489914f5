"""Steps that take longer on all ranks: seen by none of the comparisons between them."""

from __future__ import annotations

import pandas as pd

from ...align.steps.microbatch_work import FEATURES
from ...align.steps.windows import StepWindows
from .detect import detect
from .results import DetectionResult
from .settings import DetectionSettings
from .verdict import RankVerdict

JOB_WANDER = 0.01
"""Standard deviation by which a healthy job changes slowly. Ranks share a room, a power limit and a
data set, so that it is larger than that of a rank; the seeded jobs of ``bench.detection`` go up to it."""
_UNIT = 1e6
"""Quotients in parts per million: the quantile takes whole numbers as they are."""


def slow_together(
    durations: pd.DataFrame, windows: StepWindows, detection: DetectionResult
) -> RankVerdict | None:
    """Return in which steps all ranks took longer for their work, None if they did not.

    The job is judged as one rank would be that took the median of all that are not slow
    themselves, by its past. Its work is known from that of its microbatches, or by the tokens of its
    steps, where all have them.
    """
    slow = {verdict.rank for verdict in detection.suspects}
    own = durations[~durations["rank"].isin(slow) & (durations["dur_ns"] > 0)]
    if own["rank"].nunique() < 2:
        return None
    usual = own.groupby(["rank", "kind", "chunk"])["dur_ns"].transform("mean")
    keys = ["step", "kind", "chunk", "microbatch"]
    # The lower median: what half of the ranks do not take longer, all of them do not.
    job = (
        (_UNIT * own["dur_ns"] / usual)
        .groupby([own[key] for key in keys])
        .quantile(0.5, interpolation="lower")
    )
    table = job.rename("dur_ns").reset_index().assign(rank=0)
    if set(FEATURES) <= set(own.columns):
        means = own.groupby(keys)[list(FEATURES)].mean()
        table[list(FEATURES)] = means.reindex(pd.MultiIndex.from_frame(table[keys])).to_numpy()
        return _judged(table)
    tokens = windows.step_tokens()
    if tokens is not None:
        table["tokens"] = table["step"].map(pd.Series(tokens, index=windows.steps))
    return _judged(table)


def _judged(table: pd.DataFrame) -> RankVerdict | None:
    verdict = detect(table, None, DetectionSettings(wander=JOB_WANDER)).of(0)
    return verdict if verdict.is_slow else None
