"""Seeded cases of the fault matrix: a synthetic job, and what the diagnosis must say."""

from dataclasses import dataclass, replace

import numpy as np
from tests.truth.matrix.jobs import draw_job
from tests.truth.matrix.rows import FEW_MICROBATCHES, ROWS

from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob

NONE = "none"
BUBBLE = "pipeline_bubble"
SEED = 20_26_11
"""Published: the suite is the same for everybody."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job with its faults; the wanted answer is that for the fault that costs most."""

    row: str
    """Line of the fault matrix."""
    number: int
    job: SyntheticJob

    @property
    def is_bubble(self) -> bool:
        """Return whether the schedule itself is what costs."""
        return self.row == FEW_MICROBATCHES


def kind_of(fault: Fault) -> str:
    """Return the kind of finding that a fault must lead to."""
    return {
        FaultKind.SLOW_RANK: "straggler_rank",
        FaultKind.BLOCKED_RANK: "straggler_rank",
        FaultKind.CLOCK_DROP: "clock_throttle",
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
    names = list(ROWS)
    drawn = [name for name in names if not ROWS[name].twin_of]
    found = []
    for place in range(count):
        turn, at = divmod(place, len(names))
        name = names[at]
        number = turn * len(drawn) + drawn.index(ROWS[name].twin_of or name)
        draw, row = np.random.default_rng([seed, number]), ROWS[name]
        job = draw_job(draw, row.needs)
        job = replace(job, **row.changes(draw, job))
        job = replace(job, faults=row.faults(draw, job))
        found.append(Case(row=name, number=number, job=job))
    return found
