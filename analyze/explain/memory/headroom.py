"""Which stage runs out of memory first, and at which microbatch size or sequence length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import ConfigError

from ...formulas.planning.job import PlannedJob
from ...formulas.planning.memory import stage_memory
from ...formulas.planning.plan import RESERVED_OVER_ALLOCATED
from ...tables.arrays import FloatArray
from .expected import ExpectedMemory

OUTSIDE_BYTES = (1e9, 3e9)
"""CUDA context and NCCL buffers beside the allocator, least and most."""
_MOST_TIMES = 1 << 6
_LENGTH_UNIT = 64
"""Sequences grow by so many tokens on each rank that shares one: nobody trains on odd lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A largest size that fits: surely, and at most."""

    now: int
    surely: int
    at_most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Who runs out first as microbatches or sequences grow."""

    stage: int
    microbatch_size: Range
    seq_len: Range


def headroom(by_stage: pd.DataFrame, expected: ExpectedMemory) -> Headroom | None:
    """Return the stage that runs out first, None where memory or capacity of a stage is unknown.

    The formulas say how a stage grows; what it holds beside them is taken as constant (least) or as
    growing alike (most). Reserved over allocated is the measured one, else the interval of the plan.

    Args:
        by_stage: A table of ``with_expected``.
        expected: What the formulas expect.
    """
    rows = by_stage[by_stage["stage"] >= 0].set_index("stage")
    held = rows["steady_bytes"].astype("Float64").fillna(rows["peak_bytes"].astype("Float64"))
    needed = pd.DataFrame({"held": held, "capacity": rows["capacity_bytes"].astype("Float64")})
    if not len(needed) or needed.isna().to_numpy().any():
        return None
    ratios = dict(
        zip(rows.index.tolist(), rows["reserved_bytes"].astype("Float64") / held, strict=True)
    )
    stages = [
        _Stage(
            stage=stage,
            held_bytes=float(row["held"]),
            capacity_bytes=float(row["capacity"]),
            ratios=_ratios(ratios[stage]),
        )
        for stage, row in zip(needed.index.tolist(), needed.to_dict("records"), strict=True)
    ]
    job = expected.job
    unit = max(1, job.layout.cp * job.layout.tp * _LENGTH_UNIT)
    sizes, lengths = _Grown(job, _with_size), _Grown(job, _with_length)
    found = [
        Headroom(
            stage=one.stage,
            microbatch_size=_largest(one, sizes, job.microbatch_size, 1),
            seq_len=_largest(one, lengths, job.model.seq_len, unit),
        )
        for one in stages
    ]
    return min(found, key=lambda one: (*_order(one.seq_len), *_order(one.microbatch_size)))


def _order(found: Range) -> tuple[int, int]:
    return found.surely, found.at_most


class _Grown:
    """Allocated bytes by stage of a job that was changed to another size; each size is planned once."""

    def __init__(self, job: PlannedJob, change: Callable[[PlannedJob, int], PlannedJob]) -> None:
        self._job, self._change = job, change
        self._known: dict[int, FloatArray | None] = {}
        self.now = _allocated(job)

    def at(self, size: int) -> FloatArray | None:
        """Return bytes by stage, None where no job has that size."""
        if size not in self._known:
            try:
                self._known[size] = _allocated(self._change(self._job, size))
            except ConfigError:
                self._known[size] = None
        return self._known[size]


def _allocated(job: PlannedJob) -> FloatArray:
    return np.array([one.allocated_bytes for one in stage_memory(job)], np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    stage: int
    held_bytes: float
    capacity_bytes: float
    ratios: tuple[float, float]


def _ratios(measured: object) -> tuple[float, float]:
    """Return least and most of reserved over allocated."""
    low, _, high = RESERVED_OVER_ALLOCATED
    if measured is None or measured is pd.NA or np.isnan(float(str(measured))):
        return low, high
    return max(1.0, float(str(measured))), max(high, float(str(measured)))


def _with_size(job: PlannedJob, size: int) -> PlannedJob:
    return replace(job, microbatch_size=size)


def _with_length(job: PlannedJob, length: int) -> PlannedJob:
    return replace(job, model=replace(job.model, seq_len=length))


def _largest(stage: _Stage, grown: _Grown, now: int, unit: int) -> Range:
    """Return the largest size that fits, in steps of a unit."""
    of_now = float(grown.now[stage.stage])

    def fits(size: int, *, surely: bool) -> bool:
        by_stage = grown.at(size)
        if by_stage is None:
            return False
        planned = float(by_stage[stage.stage])
        beside = planned + stage.held_bytes - of_now
        alike = planned * stage.held_bytes / of_now
        allocated = max(beside, alike) if surely else min(beside, alike)
        free = stage.capacity_bytes - OUTSIDE_BYTES[1 if surely else 0]
        return allocated * stage.ratios[1 if surely else 0] <= free

    surely, at_most = (
        _last(
            partial(lambda count, which: fits(count * unit, surely=which), which=which), now // unit
        )
        * unit
        for which in (True, False)
    )
    return Range(now=now, surely=surely, at_most=max(surely, at_most))


def _last(fits: Callable[[int], bool], start: int) -> int:
    """Return the largest count that fits; 0 where none does."""
    low, high = 0, max(1, start)
    while fits(high) and high < _MOST_TIMES * max(1, start):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
