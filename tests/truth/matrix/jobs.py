"""The healthy jobs that faults are put into: mesh, schedule, size, jitter."""

from enum import Flag, auto

import numpy as np

from meshscope.analyze.formulas.schedules import stage_of
from meshscope.analyze.synthetic import Costs, SyntheticJob
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

_REPLICATED = [
    ParallelLayout(tp=2, pp=2, dp=2),
    ParallelLayout(pp=4, dp=2),
    ParallelLayout(dp=8),
    ParallelLayout(tp=4, dp=2),
    ParallelLayout(tp=2, pp=4, dp=4),
    ParallelLayout(pp=2, dp=4),
    ParallelLayout(pp=8, dp=2),
    ParallelLayout(pp=4, dp=2, vpp=2),
    ParallelLayout(tp=2, pp=2, dp=2, vpp=2),
]
_SINGLE = [ParallelLayout(tp=2, pp=4), ParallelLayout(pp=4), ParallelLayout(pp=8)]
"""One replica of the model: a rank has its tensor-parallel peers, or none."""
_SCHEDULES = [ScheduleKind.ONE_F_ONE_B, ScheduleKind.GPIPE, ScheduleKind.ZB_H1]
_OF_CHUNKS = [ScheduleKind.INTERLEAVED, ScheduleKind.ZB_V]


class Needs(Flag):
    """What of a job a fault needs, so that it exists and can be known."""

    NOTHING = 0
    PIPELINE = auto()
    """Several stages."""
    GROUPS = auto()
    """Several groups along dp: a lone one has nothing to compare with."""
    TENSOR = auto()
    """Tensor-parallel peers."""
    ONE_REPLICA = auto()
    """No data parallelism."""
    LONE_RANKS = auto()
    """No peers at all."""
    ONE_CHUNK = auto()
    """One stage a rank."""


def draw_job(draw: np.random.Generator, needs: Needs) -> SyntheticJob:
    """Return a healthy job that has what is needed."""
    single = Needs.ONE_REPLICA in needs or Needs.LONE_RANKS in needs
    fitting = [one for one in (_SINGLE if single else _REPLICATED) if _fits(one, needs)]
    layout = fitting[draw.integers(len(fitting))]
    schedules = _OF_CHUNKS if layout.vpp > 1 else _SCHEDULES
    schedule = schedules[draw.integers(len(schedules))]
    return SyntheticJob(
        layout=layout,
        schedule=schedule if layout.pp > 1 else ScheduleKind.NONE,
        microbatches=int(draw.choice([8, 12, 16])) if layout.pp < 8 else 16,
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


def position_of(job: SyntheticJob, stage: int) -> int:
    """Return the place in the pipeline of the ranks that hold a stage of the model."""
    layout = job.layout
    for place in range(layout.pp):
        for chunk in range(layout.vpp):
            if stage_of(job.schedule, place, chunk, layout.pp) == stage:
                return place
    raise ValueError(f"stage {stage} is not in the pipeline")


def _fits(layout: ParallelLayout, needs: Needs) -> bool:
    misfits = (
        Needs.PIPELINE in needs and layout.pp == 1,
        Needs.GROUPS in needs and layout.tp * layout.pp == 1,
        Needs.TENSOR in needs and layout.tp == 1,
        Needs.LONE_RANKS in needs and layout.tp > 1,
        Needs.ONE_CHUNK in needs and layout.vpp > 1,
    )
    return not any(misfits)
