"""Hosts that stall their devices: data, garbage collection, checkpoints, synchronisation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from meshscope.probe.schema.terms import FindingKind

from ..account import Account
from ..causes import UNRECORDED_DELAY, stalled_rank
from ..ledger.classes import UNATTRIBUTED
from ..results import Finding, Where
from .bad_steps import BadSteps, bad_steps
from .grading import MIN_COST, severity

MIN_STALL = 0.02
"""Share of the step from which host time is worth a finding."""
OTHERS_WAIT = 1.5
"""From this ratio of cost to time spent, averaged over ranks, others wait for it."""


class _Stall(NamedTuple):
    """What is said of the time of one ledger class."""

    kind: FindingKind
    what: str
    remedy: str
    remedy_of_one: str
    """The same where one rank has it."""


_STALLS = {
    "data_load": _Stall(
        FindingKind.DATA_STALL,
        "waiting for data",
        "More loader workers, prefetch, faster storage",
        "Look at what rank {rank} alone reads, and at its host's storage and loader workers; "
        "then more workers, prefetch",
    ),
    "gc": _Stall(
        FindingKind.GC_PAUSE,
        "Python garbage collection",
        "Disable automatic garbage collection and collect on all ranks at the same step",
        "Look for what rank {rank} alone allocates and keeps; disable automatic garbage collection "
        "and collect on all ranks at the same step",
    ),
    "checkpoint": _Stall(
        FindingKind.CHECKPOINT_STALL,
        "saving checkpoints",
        "Save asynchronously, or less often",
        "Save asynchronously, less often, or with the state spread over more ranks than rank {rank}",
    ),
    "host_blocked": _Stall(
        FindingKind.HOST_STALL,
        "a blocked host",
        "Remove synchronising calls from the step",
        "Look for what blocks rank {rank} alone: a synchronising call, logging, a hook, its host",
    ),
}


def host_stalls(account: Account) -> Iterator[Finding]:
    """Host time that takes 2 % of the step, or whose repair returns 1 % of it."""
    for name, stall in _STALLS.items():
        spent = account.class_frac(name)
        cause = next(iter(account.causes(stall.kind.value)), None)
        gain = None if cause is None else cause.removal_gain_frac
        cost = max(spent, gain or 0.0)
        if spent == 0 or (spent < MIN_STALL and (gain or 0.0) < MIN_COST):
            continue
        place = cause.where if cause is not None else _place(account, name)
        rank = place.get("rank")
        when = bad_steps(account.windows, account.class_by_step(name, rank), cost)
        claim = f"The ranks spend {spent:.1%} of the step on {stall.what}{when.share_suffix}"
        if rank is not None:
            own = float(account.class_by_step(name, rank).mean()) / account.windows.step_time_ns
            claim = f"Rank {rank} spends {own:.1%} of the step on {stall.what}{when.share_suffix}"
            if cause is not None and cost > OTHERS_WAIT * spent:
                claim += ", and the others wait for it"
        yield Finding(
            kind=stall.kind,
            severity=severity(cost),
            where={**place, **when.where},
            steps=when.steps,
            claim=claim,
            cost_frac=cost,
            removal_gain_frac=gain,
            confidence=0.8,
            evidence=tuple(_evidence(account, name, rank, when)),
            remedy=stall.remedy if rank is None else stall.remedy_of_one.format(rank=rank),
        )


def unrecorded_delays(account: Account) -> Iterator[Finding]:
    """A stage that loses far more than the others in what nothing was recorded of."""
    for cause in account.causes(UNRECORDED_DELAY):
        cost = max(cause.share_frac, cause.removal_gain_frac)
        if cost < MIN_COST:
            continue
        stage = cause.where["stage"]
        own = account.class_by_stage(UNATTRIBUTED) / 1e6
        others = float(own.drop(stage).median())
        who = f"Stage {stage}"
        who += f" (rank {cause.where['rank']})" if "rank" in cause.where else ""
        yield Finding(
            kind=FindingKind.HOST_STALL,
            severity=severity(cost),
            where=cause.where,
            claim=f"{who} is late outside of its passes, in time of which nothing was recorded, and the "
            "others wait for it",
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=0.7,
            evidence=(
                f"not attributed: {own[stage]:.1f} ms per step, {others:.1f} ms in the median of the "
                "other stages",
                "no slow pass, no wait and no known stall explains it: a schedule with more microbatches "
                "would not help",
            ),
            remedy=f"Look at what stage {stage} does between its passes: copies, serialisation, logging, "
            "locks, calls that block before a send",
        )


def _place(account: Account, name: str) -> Where:
    """Return the rank that stalls, where there is no replay to ask: of a few, or none."""
    times = account.ledger.by_step.pivot(index="rank", columns="step", values=name)
    return stalled_rank(times.index.to_numpy(np.int64), times.fillna(0.0).to_numpy(np.float64))


def _evidence(account: Account, name: str, rank: int | None, when: BadSteps) -> Iterator[str]:
    """Say on which ranks, and in which steps, how much there is."""
    by_rank = account.ledger.by_step.groupby("rank")[name].mean() / 1e6
    least, most = f"{by_rank.min():.2f}", f"{by_rank.max():.2f}"
    spread = f"{least} to {most} ms by rank" if least != most else "alike on all ranks"
    if rank is not None:
        spread = f"{by_rank[rank]:.2f} ms on rank {rank}"
    yield f"{name}: mean {by_rank.mean():.2f} ms per step; {spread}"
    who = "on average over the ranks" if rank is None else f"on rank {rank}"
    by_step = account.class_by_step(name, rank) / 1e6
    is_bad = by_step.index.isin(when.steps)
    others = "" if when.are_all else f", {by_step[~is_bad].mean():.2f} ms in the others"
    yield f"{who} {by_step[is_bad].mean():.2f} ms {when.words}{others}"
