"""Hosts that stall their devices: data, garbage collection, checkpoints, launches."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, KernelCategory

from ..account import Account
from ..deep_steps import listed_steps
from ..kernel_coverage import common_kernel_steps, has_kernels
from ..results import Finding
from ..trace import Trace
from .grading import MIN_COST, severity

MIN_STALL = 0.02
MIN_IDLE = 0.25
"""Shares of the step from which host time, and an idle device, are worth a finding."""
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


def launch_bound(account: Account) -> Iterator[Finding]:
    """A device that idles most of the time although nobody makes it wait.

    A trace without a compute kernel (of communication only, say) tells nothing of idling.
    """
    trace = account.trace
    if not trace.row_count("kernel"):
        return
    common = common_kernel_steps(trace, account.windows.ranks)
    by_step = account.ledger.by_step
    traced = by_step[has_kernels(trace, by_step["step"], common)]
    if traced.empty:
        return
    cost = float(traced["unattributed"].sum() / traced["step_ns"].sum())
    if cost < MIN_IDLE or not any(_has_compute(trace, rank) for rank in trace.ranks):
        return
    seen = () if common is None else (f"seen in {listed_steps(common.tolist())}, traced in depth",)
    yield Finding(
        kind=FindingKind.LAUNCH_BOUND,
        severity=severity(cost),
        where={},
        claim=f"The devices are idle {cost:.0%} of the step without waiting for a peer",
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.6,
        evidence=("no kernel, copy or collective was on the device in that time", *seen),
        remedy="Fuse or capture small kernels (CUDA graphs, torch.compile), or give each step more work",
    )


def _has_compute(trace: Trace, rank: int) -> bool:
    category = trace.rank_frame("kernel", rank, ["category"])["category"]
    return bool((category == KernelCategory.COMPUTE).any())
