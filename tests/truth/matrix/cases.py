"""Seeded cases of the fault matrix: a synthetic job, and what the diagnosis must say."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meshscope.analyze.synthetic import Costs, Fault, FaultKind, SyntheticJob
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

NONE = "none"
SEED = 20_26_11
"""Published: the suite is the same for everybody."""

_LAYOUTS = [
    ParallelLayout(tp=2, pp=2, dp=2),
    ParallelLayout(pp=4, dp=2),
    ParallelLayout(dp=8),
    ParallelLayout(tp=4, dp=2),
    ParallelLayout(tp=2, pp=4, dp=4),
    ParallelLayout(pp=2, dp=4),
    ParallelLayout(pp=8, dp=2),
]
_SCHEDULES = [ScheduleKind.ONE_F_ONE_B, ScheduleKind.GPIPE, ScheduleKind.ZB_H1]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job with its faults; the wanted answer is that for the fault that costs most."""

    row: str
    """Line of the fault matrix."""
    number: int
    job: SyntheticJob
    wanted: str
    """Kind of the first finding, ``none`` for a healthy job."""


def kind_of(fault: Fault) -> str:
    """Return the kind of finding that a fault must lead to."""
    return {
        FaultKind.SLOW_RANK: "straggler_rank",
        FaultKind.CLOCK_DROP: "straggler_rank",
        FaultKind.SLOW_STAGE: "stage_imbalance",
        FaultKind.HEAVY_EMBEDDING: "stage_imbalance",
        FaultKind.HEAVY_HEAD: "stage_imbalance",
        FaultKind.SLOW_LINK: "slow_link",
        FaultKind.GC_PAUSE: "gc_pause",
        FaultKind.DATA_STALL: "data_stall",
        FaultKind.CHECKPOINT: "checkpoint_stall",
        FaultKind.SEQUENCE: "sequence_imbalance",
    }.get(fault.kind, NONE)


def cases(count: int, seed: int = SEED) -> list[Case]:
    """Return as many cases, the rows of the matrix in turn."""
    rows = list(_ROWS)
    found = []
    for number in range(count):
        row = rows[number % len(rows)]
        draw = np.random.default_rng([seed, number])
        job = _job(draw, _needs_pipeline(row), _needs_groups(row))
        faults = _ROWS[row](draw, job)
        job = replace(job, faults=faults)
        wanted = NONE if row in _HARMLESS else kind_of(faults[0]) if faults else NONE
        found.append(Case(row=row, number=number, job=job, wanted=wanted))
    return found


def _job(draw: np.random.Generator, pipeline: bool, groups: bool) -> SyntheticJob:
    fitting = [
        layout
        for layout in _LAYOUTS
        if (not pipeline or layout.pp > 1) and (not groups or layout.tp * layout.pp > 1)
    ]
    layout = fitting[draw.integers(len(fitting))]
    schedule = _SCHEDULES[draw.integers(len(_SCHEDULES))]
    return SyntheticJob(
        layout=layout,
        schedule=schedule if layout.pp > 1 else ScheduleKind.NONE,
        microbatches=int(draw.choice([8, 12, 16])),
        steps=int(draw.choice([8, 12])),
        costs=Costs(
            layer_forward_ns=5_000_000,
            layer_backward_input_ns=5_000_000,
            layer_backward_weight_ns=5_000_000,
        ),
        jitter_cv=float(draw.uniform(0.005, 0.03)),
        wire_cv=float(draw.uniform(0.0, 0.1)),
        dp_buckets=int(draw.choice([1, 4])),
        overlap_dp=bool(draw.integers(2)),
        ranks_per_host=int(draw.choice([4, 8])),
        seed=int(draw.integers(1 << 30)),
    )


def _rank(draw, job) -> int:
    return int(draw.integers(job.layout.world_size))


def _pick(draw, values) -> float:
    return float(draw.choice(values))


def _slow_rank(draw, job):
    factor = _pick(draw, [1.05, 1.1, 1.2, 1.5])
    return (Fault(kind=FaultKind.SLOW_RANK, rank=_rank(draw, job), factor=factor),)


def _late_slow_rank(draw, job):
    (fault,) = _slow_rank(draw, job)
    return (replace(fault, factor=max(fault.factor, 1.2), first_step=job.steps // 2),)


def _slow_stage(draw, job):
    stage = int(draw.integers(job.stages))
    return (Fault(kind=FaultKind.SLOW_STAGE, stage=stage, factor=_pick(draw, [1.1, 1.3, 2.0])),)


def _heavy_head(draw, job):
    return (Fault(kind=FaultKind.HEAVY_HEAD, extra_ms=_pick(draw, [3.0, 6.0, 12.0])),)


def _heavy_embedding(draw, job):
    return (Fault(kind=FaultKind.HEAVY_EMBEDDING, extra_ms=_pick(draw, [3.0, 6.0, 12.0])),)


def _slow_dp_group(draw, job):
    return (_slow_link("dp", draw, job),)


def _slow_tp_group(draw, job):
    return (_slow_link("tp" if job.layout.tp > 1 else "dp", draw, job),)


def _slow_link(axis, draw, job):
    extra = {"dp": [20.0, 60.0], "tp": [2.0, 5.0]}[axis]
    return Fault(
        kind=FaultKind.SLOW_LINK, axis=axis, rank=_rank(draw, job), extra_ms=_pick(draw, extra)
    )


def _slow_pp_link(draw, job):
    layout = job.layout
    at = layout.coordinates(_rank(draw, job))
    stage = int(draw.integers(layout.pp - 1))
    ends = [layout.rank(**{**at, "pp": place}) for place in (stage, stage + 1)]
    extra = _pick(draw, [5.0, 15.0])
    return (Fault(kind=FaultKind.SLOW_LINK, axis="pp", rank=ends[0], peer=ends[1], extra_ms=extra),)


def _sequences(draw, job):
    return (Fault(kind=FaultKind.SEQUENCE, cv=_pick(draw, [0.2, 0.3, 0.4])),)


def _pause(kind, low, high, *, on_all=False):
    def faults(draw, job):
        place = {} if on_all else {"rank": _rank(draw, job)}
        return (Fault(kind=kind, extra_ms=float(draw.uniform(low, high)), **place),)

    return faults


def _skew(draw, job):
    offset = _pick(draw, [0.001, 1.0, 30.0, 1000.0])
    host = int(draw.integers(job.hosts))
    return (Fault(kind=FaultKind.CLOCK_SKEW, host=host, offset_ms=offset, drift_ppm=0.0),)


def _slow_rank_and_skew(draw, job):
    (slow,) = _slow_rank(draw, job)
    return (replace(slow, factor=1.3), *_skew(draw, job))


def _two_faults(draw, job):
    first = _slow_rank(draw, job)[0]
    others = [_pause(FaultKind.GC_PAUSE, 20, 60)(draw, job)[0], _slow_link("dp", draw, job)]
    if job.layout.pp > 1:
        others.append(_heavy_head(draw, job)[0])
    return (replace(first, factor=1.5), others[draw.integers(len(others))])


def _nothing(draw, job):
    return ()


_ROWS: dict[str, Callable] = {
    "slow rank": _slow_rank,
    "slow rank from mid-run": _late_slow_rank,
    "slow stage": _slow_stage,
    "heavy output head": _heavy_head,
    "heavy embedding": _heavy_embedding,
    "slow dp group": _slow_dp_group,
    "slow tp group": _slow_tp_group,
    "slow pp link": _slow_pp_link,
    "unequal sequences": _sequences,
    "gc pause": _pause(FaultKind.GC_PAUSE, 20, 80),
    "data stall, one rank": _pause(FaultKind.DATA_STALL, 20, 100),
    "data stall, all ranks": _pause(FaultKind.DATA_STALL, 20, 100, on_all=True),
    "checkpoint, all ranks": _pause(FaultKind.CHECKPOINT, 20, 100, on_all=True),
    "clock skew alone": _skew,
    "slow rank with clock skew": _slow_rank_and_skew,
    "slow rank and another": _two_faults,
    "healthy": _nothing,
}
_HARMLESS = ("clock skew alone", "healthy")


def _needs_pipeline(row: str) -> bool:
    return row in ("slow stage", "heavy output head", "heavy embedding", "slow pp link")


def _needs_groups(row: str) -> bool:
    """Return whether an axis must have several groups: a lone one has nothing to compare with."""
    return row in ("slow dp group", "slow tp group", "slow rank and another")
