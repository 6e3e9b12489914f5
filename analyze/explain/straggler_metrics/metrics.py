"""The published straggler metrics: S, what each type, replica and stage adds, M_W and M_S.

With T the replayed step time (means over steps)::

    S   = T(recorded lengths, no launch delays) / T(ideal lengths)
    S_X = T(ideal, but X keeps its recorded lengths) / T(ideal)
    M_X = (T(recorded) - T(recorded, but X ideal)) / (T(recorded) - T(ideal))

Source: Lin et al., "Understanding Stragglers in Large Model Training Using What-if
Analysis", OSDI 2025, and its tool StragglerAnalysis: a step lasts from its first start to the last end
of any operation, but where a ratio is taken against a replay, to the end of the last optimizer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshscope.probe.schema.errors import TraceFormatError

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...wording.limits import Limit
from ...wording.message import message
from .job import Job, read_job
from .parts import Parts, parts_by_delay, parts_by_length
from .scenarios import Choice, Labels, Replayer, Scenario, everything, nothing

MIN_SLOWDOWN = 1.03
"""A slowdown below this is not taken apart."""
WORST_WORKERS_PERCENT = 3
"""Part of the workers, rounded up, whose repair M_W tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What repairing some operations returns; seconds are means over steps.

    None where it is not known which operations, or where there is no slowdown.
    """

    removed_s: float | None
    """Step time with these ideal and the others as recorded."""
    added_s: float | None
    """Step time with these as recorded and the others ideal."""
    recorded_s: float
    ideal_s: float

    @property
    def removed_frac(self) -> float | None:
        """Return the share of the slowdown that goes when these are repaired: M."""
        if self.removed_s is None:
            return None
        return _ratio(self.recorded_s - self.removed_s, self.recorded_s - self.ideal_s)

    @property
    def added_frac(self) -> float | None:
        """Return the share of the slowdown that these cause alone."""
        if self.added_s is None:
            return None
        return _ratio(self.added_s - self.ideal_s, self.recorded_s - self.ideal_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedMetrics:
    """The published account of one job; times in seconds, as its trace has them."""

    meta: dict[str, object]
    steps: IntArray
    measured_s: FloatArray
    """Step times as recorded."""
    recorded_s: FloatArray
    """Step times with the recorded lengths and no launch delays."""
    ideal_s: FloatArray
    """Step times with ideal lengths."""
    launch_slowdown: float
    launch_step_slowdown: FloatArray
    slowdown: float
    """S."""
    step_slowdown: FloatArray
    launch_parts: Parts | None
    """None below ``MIN_SLOWDOWN``."""
    slowdown_parts: Parts | None
    """The same."""
    ranks: dict[tuple[int, int], int]
    """Global rank by replica and stage."""
    worst_workers: Repair
    """M_W."""
    last_stage: Repair
    """M_S."""
    limits: tuple[Limit, ...]

    @property
    def waste_frac(self) -> float:
        """Return the share of the time that stragglers cost: 1 - 1/S."""
        return 1.0 - 1.0 / self.slowdown

    def worker_slowdowns(self) -> dict[tuple[int, int], float]:
        """Return S_w by replica and stage: the lesser of what the replica and the stage add."""
        if self.slowdown_parts is None:
            return {}
        dp_rank, stage = self.slowdown_parts.dp_rank.overall, self.slowdown_parts.stage.overall
        return {place: min(dp_rank[place[0]], stage[place[1]]) for place in self.ranks}


def published_metrics(parquet: Path) -> PublishedMetrics:
    """Return the published metrics of the NDTimeline job in a parquet file.

    Raises:
        TraceFormatError: The file is damaged, no step is whole, its operations cannot be
            ordered, or its steps have no length.
    """
    job = read_job(parquet)
    try:
        replayer = Replayer(job)
    except ValueError as error:
        raise TraceFormatError(
            message("refused.no_replay", error=error),
            where=str(parquet),
            remedy=message("advice.clocks"),
        ) from error
    times = replayer.replay([Scenario(own_length=everything), Scenario(own_length=nothing)])
    measured, (recorded, ideal) = replayer.measured_s(), times.span_s
    recorded_end, ideal_end = times.finish_s
    if not min(measured.min(), recorded_end.min(), ideal_end.min()) > 0:
        raise TraceFormatError(message("refused.step_without_length"), where=str(parquet))
    launch, slowdown = measured.mean() / recorded_end.mean(), recorded.mean() / ideal_end.mean()
    parts = parts_by_length(job, replayer, ideal_end) if slowdown >= MIN_SLOWDOWN else None
    return PublishedMetrics(
        meta=job.meta,
        steps=replayer.steps,
        measured_s=measured,
        recorded_s=recorded,
        ideal_s=ideal,
        launch_slowdown=float(launch),
        launch_step_slowdown=measured / recorded_end,
        slowdown=float(slowdown),
        step_slowdown=recorded / ideal_end,
        launch_parts=(
            parts_by_delay(job, replayer, recorded_end) if launch >= MIN_SLOWDOWN else None
        ),
        slowdown_parts=parts,
        ranks={place: rank for place, rank in job.rank.items() if place[0] in job.dp_ranks},
        worst_workers=_repair(replayer, recorded, ideal, _worst_workers(job, parts)),
        last_stage=_repair(replayer, recorded, ideal, _last_stage),
        limits=(*job.limits, *_unmatched(replayer.unmatched)),
    )


def _last_stage(labels: Labels) -> BoolArray:
    return np.asarray(labels.stage == labels.stage.max())


def _worst_workers(job: Job, parts: Parts | None) -> Choice | None:
    """Choose the workers with the highest S_w, the lower rank first among equals."""
    if parts is None:
        return None
    dp_rank, stage = parts.dp_rank.overall, parts.stage.overall
    score = {
        rank: min(dp_rank[place[0]], stage[place[1]])
        for place, rank in job.rank.items()
        if place[0] in dp_rank
    }
    count = math.ceil(len(score) * WORST_WORKERS_PERCENT / 100)
    worst = sorted(score, key=lambda rank: (-score[rank], rank))[:count]
    return lambda labels: np.isin(labels.rank, worst)


def _repair(
    replayer: Replayer, recorded_s: FloatArray, ideal_s: FloatArray, choice: Choice | None
) -> Repair:
    if choice is None:
        return Repair(
            removed_s=None,
            added_s=None,
            recorded_s=float(recorded_s.mean()),
            ideal_s=float(ideal_s.mean()),
        )
    removed, added = replayer.replay(
        [
            Scenario(own_length=lambda labels: ~choice(labels)),
            Scenario(own_length=choice),
        ]
    ).span_s.mean(axis=1)
    return Repair(
        removed_s=float(removed),
        added_s=float(added),
        recorded_s=float(recorded_s.mean()),
        ideal_s=float(ideal_s.mean()),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _unmatched(count: int) -> tuple[Limit, ...]:
    if not count:
        return ()
    return (message("assumed.transfers_end_alone", count=count),)
