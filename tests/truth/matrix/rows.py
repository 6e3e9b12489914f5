"""The lines of the fault matrix: what is injected, and into which jobs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.truth.matrix.jobs import Needs

from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob

Draw = np.random.Generator
Faults = tuple[Fault, ...]
FEW_MICROBATCHES = "few microbatches"


def _unchanged(draw: Draw, job: SyntheticJob) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the matrix."""

    faults: Callable[[Draw, SyntheticJob], Faults]
    needs: Needs = Needs.NOTHING
    changes: Callable[[Draw, SyntheticJob], dict[str, Any]] = _unchanged
    """What of the drawn job is set otherwise."""
    twin_of: str = ""
    """Line with the same jobs, but for what was recorded of them."""


def _rank(draw: Draw, job: SyntheticJob) -> int:
    return int(draw.integers(job.layout.world_size))


def _pick(draw: Draw, values: list[float]) -> float:
    return float(draw.choice(values))


def _nothing(draw: Draw, job: SyntheticJob) -> Faults:
    return ()


def _slow_rank(draw: Draw, job: SyntheticJob) -> Faults:
    factor = _pick(draw, [1.05, 1.1, 1.2, 1.5])
    return (Fault(kind=FaultKind.SLOW_RANK, rank=_rank(draw, job), factor=factor),)


def _slow_member(draw: Draw, job: SyntheticJob) -> Faults:
    factor = _pick(draw, [1.05, 1.2])
    return (Fault(kind=FaultKind.SLOW_RANK, rank=_rank(draw, job), factor=factor),)


def _late_slow_rank(draw: Draw, job: SyntheticJob) -> Faults:
    (fault,) = _slow_rank(draw, job)
    return (replace(fault, factor=max(fault.factor, 1.2), first_step=job.steps // 2),)


def _slow_rank_with_past(draw: Draw, job: SyntheticJob) -> Faults:
    (fault,) = _slow_rank(draw, job)
    return (replace(fault, factor=max(fault.factor, 1.2), first_step=24),)


def _slow_rank_at_times(draw: Draw, job: SyntheticJob) -> Faults:
    (fault,) = _slow_rank(draw, job)
    return (replace(fault, factor=max(fault.factor, 1.2), every=2),)


def _blocked_rank(draw: Draw, job: SyntheticJob) -> Faults:
    extra = _pick(draw, [5.0, 10.0, 20.0])
    every = int(draw.choice([1, 2, 3]))
    return (Fault(kind=FaultKind.BLOCKED_RANK, rank=_rank(draw, job), extra_ms=extra, every=every),)


def _under_sequences(
    faults: Callable[[Draw, SyntheticJob], Faults],
) -> Callable[[Draw, SyntheticJob], Faults]:
    def both(draw: Draw, job: SyntheticJob) -> Faults:
        return (*faults(draw, job), *_sequences(draw, job))

    return both


def _hot_device(draw: Draw, job: SyntheticJob) -> Faults:
    factor = _pick(draw, [1.1, 1.3])
    return (Fault(kind=FaultKind.CLOCK_DROP, rank=_rank(draw, job), factor=factor),)


def _slow_stage(draw: Draw, job: SyntheticJob) -> Faults:
    stage = int(draw.integers(job.stages))
    return (Fault(kind=FaultKind.SLOW_STAGE, stage=stage, factor=_pick(draw, [1.1, 1.3, 2.0])),)


def _heavy_head(draw: Draw, job: SyntheticJob) -> Faults:
    return (Fault(kind=FaultKind.HEAVY_HEAD, extra_ms=_pick(draw, [3.0, 6.0, 12.0])),)


def _heavy_embedding(draw: Draw, job: SyntheticJob) -> Faults:
    return (Fault(kind=FaultKind.HEAVY_EMBEDDING, extra_ms=_pick(draw, [3.0, 6.0, 12.0])),)


def _slow_group(axis: str, extra_ms: list[float]) -> Callable[[Draw, SyntheticJob], Faults]:
    def faults(draw: Draw, job: SyntheticJob) -> Faults:
        extra, rank = _pick(draw, extra_ms), _rank(draw, job)
        return (Fault(kind=FaultKind.SLOW_LINK, axis=axis, rank=rank, extra_ms=extra),)

    return faults


def _slow_group_at_times(draw: Draw, job: SyntheticJob) -> Faults:
    (fault,) = _slow_group("dp", [60.0, 120.0])(draw, job)
    return (replace(fault, first_step=int(draw.integers(1, 3)), every=int(draw.choice([2, 3]))),)


def _hidden_group(draw: Draw, job: SyntheticJob) -> Faults:
    """Return a slow group of the last place, which is done long before the first one is."""
    layout = job.layout
    at = layout.coordinates(_rank(draw, job))
    rank = layout.rank(**{**at, "pp": layout.pp - 1})
    extra = _pick(draw, [4.0, 8.0])
    return (Fault(kind=FaultKind.SLOW_LINK, axis="dp", rank=rank, extra_ms=extra),)


def _slow_pp_link(draw: Draw, job: SyntheticJob) -> Faults:
    layout = job.layout
    at = layout.coordinates(_rank(draw, job))
    stage = int(draw.integers(layout.pp - 1))
    ends = [layout.rank(**{**at, "pp": place}) for place in (stage, stage + 1)]
    extra = _pick(draw, [5.0, 15.0])
    return (Fault(kind=FaultKind.SLOW_LINK, axis="pp", rank=ends[0], peer=ends[1], extra_ms=extra),)


def _sequences(draw: Draw, job: SyntheticJob) -> Faults:
    return (Fault(kind=FaultKind.SEQUENCE, cv=_pick(draw, [0.2, 0.3, 0.4])),)


def _pause(
    kind: FaultKind, low: float, high: float, *, on_all: bool = False
) -> Callable[[Draw, SyntheticJob], Faults]:
    def faults(draw: Draw, job: SyntheticJob) -> Faults:
        place = {} if on_all else {"rank": _rank(draw, job)}
        return (Fault(kind=kind, extra_ms=float(draw.uniform(low, high)), **place),)

    return faults


def _scattered_pauses(draw: Draw, job: SyntheticJob) -> Faults:
    extra = float(draw.uniform(50, 150))
    return (Fault(kind=FaultKind.GC_PAUSE, extra_ms=extra, microbatch=0, chance=0.1),)


def _skew(draw: Draw, job: SyntheticJob) -> Faults:
    offset, drift = _pick(draw, [0.001, 1.0, 30.0, 1000.0]), _pick(draw, [0.0, 20.0, 50.0])
    host = int(draw.integers(job.hosts))
    return (Fault(kind=FaultKind.CLOCK_SKEW, host=host, offset_ms=offset, drift_ppm=drift),)


def _slow_rank_and_skew(draw: Draw, job: SyntheticJob) -> Faults:
    (slow,) = _slow_rank(draw, job)
    return (replace(slow, factor=1.3), *_skew(draw, job))


def _two_faults(draw: Draw, job: SyntheticJob) -> Faults:
    first = _slow_rank(draw, job)[0]
    others = [_pause(FaultKind.GC_PAUSE, 20, 60), _slow_group("dp", [20.0, 60.0])]
    if job.layout.pp > 1:
        others.append(_heavy_head)
    second = others[draw.integers(len(others))]
    return (replace(first, factor=1.5), *second(draw, job))


def _five_faults(draw: Draw, job: SyntheticJob) -> Faults:
    (slow,) = _slow_rank(draw, job)
    return (
        replace(slow, factor=_pick(draw, [1.3, 1.5])),
        *_heavy_head(draw, job),
        *_slow_group("dp", [60.0, 120.0])(draw, job),
        *_pause(FaultKind.GC_PAUSE, 20, 80)(draw, job),
        *_pause(FaultKind.DATA_STALL, 20, 100, on_all=True)(draw, job),
    )


def _too_few(draw: Draw, job: SyntheticJob) -> dict[str, Any]:
    """Return as many microbatches as stages, or half of that where the schedule has no chunks."""
    pp = job.layout.pp
    return {"microbatches": max(1, pp // int(draw.choice([1, 2])) if job.layout.vpp == 1 else pp)}


def _twelve_steps(draw: Draw, job: SyntheticJob) -> dict[str, Any]:
    return {"steps": 12}


def _sampled(draw: Draw, job: SyntheticJob) -> dict[str, Any]:
    """Return ten samples of the devices a second, as the node agent takes them in a burst."""
    return {"sample_interval_ns": 100_000_000}


def _twenty_four_steps(draw: Draw, job: SyntheticJob) -> dict[str, Any]:
    return {"steps": 24}


def _described_sequences(draw: Draw, job: SyntheticJob) -> dict[str, Any]:
    return {"steps": 24, "tell_sequences": True}


def _several_hosts(draw: Draw, job: SyntheticJob) -> dict[str, Any]:
    return {"ranks_per_host": 4}


def _long(draw: Draw, job: SyntheticJob) -> dict[str, Any]:
    """Return enough steps for a rank without a peer to be compared with its own past."""
    return {"steps": 36, "microbatches": 8}


ROWS = {
    "slow rank": Row(faults=_slow_rank),
    "slow rank from mid-run": Row(faults=_late_slow_rank),
    "slow rank every other step": Row(faults=_slow_rank_at_times),
    "blocked rank": Row(faults=_blocked_rank),
    "slow rank, unequal sequences": Row(
        faults=_under_sequences(_slow_rank), changes=_twenty_four_steps
    ),
    "blocked rank, unequal sequences": Row(
        faults=_under_sequences(_blocked_rank), changes=_twenty_four_steps
    ),
    "slow tensor-parallel member": Row(faults=_slow_member, needs=Needs.TENSOR),
    "hot device": Row(faults=_hot_device, changes=_sampled),
    "slow rank, dp 1": Row(faults=_slow_rank, needs=Needs.ONE_REPLICA | Needs.TENSOR),
    "slow rank from mid-run, dp 1": Row(
        faults=_slow_rank_with_past, needs=Needs.LONE_RANKS, changes=_long
    ),
    "slow stage": Row(faults=_slow_stage, needs=Needs.PIPELINE),
    "heavy output head": Row(faults=_heavy_head, needs=Needs.PIPELINE),
    "heavy embedding": Row(faults=_heavy_embedding, needs=Needs.PIPELINE),
    "slow dp group": Row(faults=_slow_group("dp", [20.0, 60.0]), needs=Needs.GROUPS),
    "slow dp group at times": Row(
        faults=_slow_group_at_times, needs=Needs.GROUPS, changes=_twelve_steps
    ),
    "slow dp group, hidden": Row(faults=_hidden_group, needs=Needs.PIPELINE | Needs.ONE_CHUNK),
    "slow tp group": Row(faults=_slow_group("tp", [2.0, 5.0]), needs=Needs.TENSOR),
    "slow pp link": Row(faults=_slow_pp_link, needs=Needs.PIPELINE),
    "unequal sequences": Row(faults=_sequences),
    FEW_MICROBATCHES: Row(faults=_nothing, needs=Needs.PIPELINE, changes=_too_few),
    "gc pause": Row(faults=_pause(FaultKind.GC_PAUSE, 20, 80)),
    "gc pauses here and there": Row(faults=_scattered_pauses),
    "data stall, one rank": Row(faults=_pause(FaultKind.DATA_STALL, 20, 100)),
    "data stall, all ranks": Row(faults=_pause(FaultKind.DATA_STALL, 20, 100, on_all=True)),
    "checkpoint, all ranks": Row(faults=_pause(FaultKind.CHECKPOINT, 20, 100, on_all=True)),
    "clock skew alone": Row(faults=_skew, changes=_several_hosts),
    "slow rank with clock skew": Row(faults=_slow_rank_and_skew, changes=_several_hosts),
    "slow rank and another": Row(faults=_two_faults, needs=Needs.GROUPS),
    "five faults": Row(faults=_five_faults, needs=Needs.PIPELINE),
    "healthy": Row(faults=_nothing),
    "slow rank, unequal sequences described": Row(
        faults=_under_sequences(_slow_rank),
        changes=_described_sequences,
        twin_of="slow rank, unequal sequences",
    ),
    "blocked rank, unequal sequences described": Row(
        faults=_under_sequences(_blocked_rank),
        changes=_described_sequences,
        twin_of="blocked rank, unequal sequences",
    ),
}
