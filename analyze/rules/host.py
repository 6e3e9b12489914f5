"""Hosts that stall their devices: data, garbage collection, checkpoints, synchronisation."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind

from ..account import Account
from ..results import Finding
from .grading import MIN_COST, severity

MIN_STALL = 0.02
"""Share of the step from which host time is worth a finding."""
OTHERS_WAIT = 1.5
"""From this ratio of cost to time spent, averaged over ranks, others wait for it."""

_HOST_RULES = {
    "data_load": (
        FindingKind.DATA_STALL,
        "waiting for data",
        "More loader workers, prefetch, faster storage",
    ),
    "gc": (
        FindingKind.GC_PAUSE,
        "Python garbage collection",
        "Collect at a fixed step on all ranks",
    ),
    "checkpoint": (
        FindingKind.CHECKPOINT_STALL,
        "saving checkpoints",
        "Save asynchronously, or less often",
    ),
    "host_blocked": (
        FindingKind.HOST_STALL,
        "a blocked host",
        "Remove synchronising calls from the step",
    ),
}


def host_stalls(account: Account) -> Iterator[Finding]:
    """Host time that takes 2 % of the step, or whose repair returns 1 % of it."""
    for name, (kind, what, remedy) in _HOST_RULES.items():
        spent = account.class_frac(name)
        cause = next(iter(account.causes(kind.value)), None)
        gain = None if cause is None else cause.removal_gain_frac
        cost = max(spent, gain or 0.0)
        if spent == 0 or (spent < MIN_STALL and (gain or 0.0) < MIN_COST):
            continue
        by_rank = account.ledger.by_step.groupby("rank")[name].mean()
        worst = int(account.windows.ranks[by_rank.to_numpy().argmax()])
        alone = cause is not None and "rank" in cause.where and cost > OTHERS_WAIT * spent
        yield Finding(
            kind=kind,
            severity=severity(cost),
            where={"rank": worst} if cause is None or "rank" in cause.where else {},
            claim=f"Rank {worst} spends {by_rank.max() / account.windows.step_time_ns:.1%} of the step "
            f"on {what}, and the others wait for it"
            if alone
            else f"The ranks spend {spent:.1%} of the step on {what}",
            cost_frac=cost,
            removal_gain_frac=gain,
            confidence=0.8,
            evidence=(
                f"{name}: mean {by_rank.mean() / 1e6:.2f} ms per step, "
                f"most on rank {worst} with {by_rank.max() / 1e6:.2f} ms",
            ),
            remedy=remedy,
        )
