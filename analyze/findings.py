"""The rules: from the account of a run to things to act on.

Each rule is a function from the account to findings; ``RULES`` is the whole
list. A rule states its thresholds, its evidence in measured figures, and a
remedy; it never invents a cost that the replay did not give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from meshscope.probe.schema.terms import Axis, FindingKind, Severity

from .account import Account
from .effects import excess_by_class
from .ledger import COMPUTE_CLASSES, WIRE_CLASSES
from .memory import peak_memory_frac, stage_imbalance
from .results import Cause, Finding, Where

MIN_COST = 0.01
"""Causes that cost less of a step than this are not worth a finding."""
MIN_HIDDEN_EXCESS = 0.05
"""A rank whose repair returns nothing is named from this excess, as a share of the step."""
MIN_LINK_RATIO = 1.3
"""A group is called slow when its wire time is that many times the others' of its axis."""


def severity(cost_frac: float | None) -> Severity:
    """Return how much a cost matters: from 5 % of the step critical, from 2 % a warning."""
    if cost_frac is None:
        return Severity.INFO
    if cost_frac >= 0.05:
        return Severity.CRITICAL
    return Severity.WARNING if cost_frac >= 0.02 else Severity.INFO


def find(account: Account) -> tuple[Finding, ...]:
    """Return all findings in the order in which to look at them.

    By severity; within it what is broken before what is designed so (the bubble
    of the schedule, communication without overlap); then by cost.
    """
    found = [finding for rule in RULES for finding in rule(account)]
    return tuple(sorted(found, key=_place))


_SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_BY_DESIGN = (
    FindingKind.PIPELINE_BUBBLE,
    FindingKind.EXPOSED_COMMUNICATION,
    FindingKind.LAUNCH_BOUND,
)


def _place(finding: Finding) -> tuple[int, bool, float]:
    cost = max(finding.cost_frac or 0.0, finding.removal_gain_frac or 0.0)
    return _SEVERITIES.index(finding.severity), finding.kind in _BY_DESIGN, -cost


def straggler_ranks(account: Account) -> Iterator[Finding]:
    """A rank whose own work is longer than that of its peers, by what repairing it returns."""
    attribution = account.attribution
    if attribution is None:
        return
    table = attribution.ranks.set_index("rank")
    step = account.windows.step_time_ns
    for cause in _causes(account, "straggler_rank"):
        rank = cause.where["rank"]
        own = table.loc[rank]
        if cause.removal_gain_frac < MIN_COST and own["excess_ns"] / step < MIN_HIDDEN_EXCESS:
            continue
        where: Where = {"rank": rank}
        if account.stage[rank] >= 0:
            where["stage"] = account.stage[rank]
        where["steps"] = [int(account.windows.steps[0]), int(account.windows.steps[-1])]
        hidden = cause.removal_gain_frac < MIN_COST
        note = (
            "; repairing it alone returns nothing, because another cause hides it" if hidden else ""
        )
        yield Finding(
            kind=FindingKind.STRAGGLER_RANK,
            severity=severity(cause.removal_gain_frac),
            where=where,
            claim=f"Rank {rank} works {own['slowdown'] - 1:.0%} longer than its {own['peers']} peers "
            f"and makes the others wait{note}",
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=min(0.99, 1.0 - 2.0 / float(own["z"]) ** 2),
            evidence=tuple(_straggler_evidence(account, rank, own)),
            remedy=_straggler_remedy(account, rank),
        )


def _straggler_evidence(account: Account, rank: int, own: pd.Series) -> Iterator[str]:
    step = account.windows.step_time_ns
    yield (
        f"its own work exceeds that of its peers by {own['excess_ns'] / 1e6:.2f} ms per step "
        f"({own['excess_ns'] / step:.1%} of the step; {own['z']:.0f} standard errors)"
    )
    excess = _class_excess(account, rank)
    if len(excess):
        yield "the excess is in " + ", ".join(f"{name} ({ns / 1e6:+.2f} ms)" for name, ns in excess)
    waits = account.waits.set_index("rank")
    row = waits.loc[rank]
    if row["collectives"]:
        yield (
            f"it arrived last in {row['arrived_last']:.0f} of its {row['collectives']:.0f} collectives; "
            f"the others waited {row['wait_caused_ns'] / 1e6:.1f} ms for it, "
            f"it waited {row['wait_ns'] / 1e6:.1f} ms"
        )
    cpu = _cpu_per_step(account, rank)
    if cpu is not None:
        yield (
            f"CPU time of its forward and backward: {cpu[0] / 1e6:.2f} ms per step, "
            f"{cpu[1] / 1e6:.2f} ms on its peers"
        )


def _class_excess(account: Account, rank: int) -> list[tuple[str, float]]:
    """Return the non-waiting classes in which the rank exceeds its peers, largest first."""
    peers = account.peers_of(rank)
    if not peers:
        return []
    excess = excess_by_class(account.ledger, rank, peers)
    own_time = excess[[name for name in excess.index if not name.startswith("exposed_")]]
    large = own_time[own_time > 0.1 * max(own_time.max(), 1.0)].nlargest(3)
    return [(str(name), float(ns)) for name, ns in large.items()]


def _cpu_per_step(account: Account, rank: int) -> tuple[float, float] | None:
    """Return thread CPU time in compute spans per step: of the rank, and its peers' median.

    Time that a rank is slow without using the CPU is sleep, I/O or descheduling.
    """
    spans = account.trace.frame("span")
    spans = spans[spans["kind"].isin(["forward", "backward"]) & spans["cpu_ns"].notna()]
    total = spans.groupby("rank")["cpu_ns"].sum() / max(spans["step"].nunique(), 1)
    peers = [peer for peer in account.peers_of(rank) if peer in total.index]
    if rank not in total.index or not peers:
        return None
    return float(total[rank]), float(total[peers].median())


def _straggler_remedy(account: Account, rank: int) -> str:
    excess = _class_excess(account, rank)
    main = excess[0][0] if excess else ""
    if main == "data_load":
        return f"Look at the data pipeline of rank {rank}: more workers, prefetch, local storage"
    if main == "gc":
        return "Disable automatic garbage collection and collect on all ranks at the same step"
    if main in ("unattributed", "other", "host_blocked"):
        return (
            f"Rank {rank} is late without computing: look at its host (CPU contention, launch delays, "
            "a blocking call) before its GPU"
        )
    return (
        f"Check the clocks, temperature and neighbours of rank {rank}'s device and host; "
        "swap it against a spare if it stays slow"
    )


def stage_imbalances(account: Account) -> Iterator[Finding]:
    """A pipeline stage that computes longer than the others."""
    for cause in _causes(account, "stage_imbalance"):
        if max(cause.share_frac, cause.removal_gain_frac) < MIN_COST:
            continue
        stage = cause.where["stage"]
        centre = _compute_by_stage(account)
        last = stage == int(centre.index.max())
        place = (
            "last stage, which holds the output head and the loss"
            if last
            else ("first stage, which holds the embedding" if stage == 0 else "stage")
        )
        others = float(centre.drop(stage).median())
        yield Finding(
            kind=FindingKind.STAGE_IMBALANCE,
            severity=severity(cause.share_frac),
            where={"stage": stage},
            claim=f"Stage {stage} ({place}) computes {centre[stage] / others - 1:.0%} longer than the others",
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=0.9,
            evidence=(
                "compute per step by stage: "
                + ", ".join(f"{index}: {ns / 1e6:.1f} ms" for index, ns in centre.items()),
            ),
            remedy=f"Move layers away from stage {stage}"
            + (", or split the output head from the last transformer layers" if last else ""),
        )


def _compute_by_stage(account: Account) -> pd.Series:
    """Return the compute per step of each stage: median over its ranks, leaving out suspects."""
    by_step = account.ledger.by_step
    compute = by_step[list(COMPUTE_CLASSES)].sum(axis=1)
    per_rank = compute.groupby(by_step["rank"]).mean()
    stage = per_rank.index.map(account.stage)
    return per_rank.groupby(stage).median()


def bubble(account: Account) -> Iterator[Finding]:
    """Waiting that the schedule imposes even with equal stages and no jitter."""
    ideal, measured = account.bubble.ideal_frac, account.bubble.measured_frac
    if measured is None or account.attribution is None:
        return
    cost = account.attribution.ideal_wait_ns / account.windows.step_time_ns
    if cost < 0.05:
        return
    formula = "" if ideal is None else f"; (p - 1) / (m v + p - 1) = {ideal:.1%} of an ideal step"
    yield Finding(
        kind=FindingKind.PIPELINE_BUBBLE,
        severity=severity(cost),
        where={"axis": Axis.PP.value},
        claim=f"The schedule itself makes the ranks wait {cost:.1%} of the step",
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            f"replayed with equal stages and no jitter, ranks still wait {cost:.1%} of the measured step"
            + formula,
            f"measured waiting on the pipeline axis: {measured:.1%} of the step, averaged over ranks",
        ),
        remedy="Use more microbatches per step, several chunks per rank, or a zero-bubble schedule",
    )


def exposed_communication(account: Account) -> Iterator[Finding]:
    """Wire time of one axis that no compute hides."""
    for axis, name in zip(Axis, WIRE_CLASSES, strict=True):
        cost = account.class_frac(name)
        if cost < 0.03:
            continue
        yield Finding(
            kind=FindingKind.EXPOSED_COMMUNICATION,
            severity=severity(cost),
            where={"axis": axis.value},
            claim=f"Transfers on the {axis.value} axis that no compute hides take {cost:.1%} of the step",
            cost_frac=cost,
            removal_gain_frac=None,
            confidence=0.8,
            evidence=(
                f"ledger class {name}: {cost * account.windows.step_time_ns / 1e6:.2f} ms per step",
            ),
            remedy={
                Axis.DP: "Overlap gradient reduction with the backward pass; larger buckets; compress",
                Axis.TP: "Keep the group inside one node; sequence parallelism with overlapped collectives",
                Axis.PP: "Overlap sends and receives with compute; fewer, larger microbatches",
            }.get(axis, "Overlap it with compute, or send less"),
        )


def slow_wires(account: Account) -> Iterator[Finding]:
    """Wire times of one axis far above those of its own undisturbed operations."""
    for cause in _causes(account, "slow_wire"):
        if cause.removal_gain_frac < 0.02:
            continue
        axis = cause.where["axis"]
        group, ratio = _slowest_group(account, axis)
        if ratio < MIN_LINK_RATIO:
            continue
        yield Finding(
            kind=FindingKind.SLOW_LINK,
            severity=severity(cause.removal_gain_frac),
            where={"axis": axis, "group_id": group},
            claim=f"Transfers in group {group} of the {axis} axis take {ratio:.1f} x as long as in the others",
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=0.7,
            evidence=(
                f"median wire time of group {group} is {ratio:.2f} x that of the other groups",
            ),
            remedy=f"Check the links between the ranks of group {group}: errors, congestion, placement",
        )


def _slowest_group(account: Account, axis: str) -> tuple[str, float]:
    """Return the group with the largest wire time against its like, and the ratio to the others."""
    frame = account.events.frame
    frame = frame[(frame["axis"] == axis) & frame["wire_ns"].notna()]
    like = frame.groupby(["kind", "size_bytes"])["wire_ns"].transform("median")
    relative = (frame["wire_ns"] / like).groupby(frame["group_id"]).median()
    top = str(relative.idxmax())
    others = relative.drop(top)
    return top, float(relative[top] / others.median()) if len(others) else 1.0


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
    """Host time that takes more than 2 % of the step."""
    for name, (kind, what, remedy) in _HOST_RULES.items():
        cost = account.class_frac(name)
        if cost < 0.02:
            continue
        by_rank = account.ledger.by_step.groupby("rank")[name].mean()
        yield Finding(
            kind=kind,
            severity=severity(cost),
            where={"rank": int(by_rank.idxmax())},
            claim=f"The ranks spend {cost:.1%} of the step on {what}",
            cost_frac=cost,
            removal_gain_frac=None,
            confidence=0.8,
            evidence=(
                f"{name}: mean {by_rank.mean() / 1e6:.2f} ms per step, "
                f"most on rank {int(by_rank.idxmax())} with {by_rank.max() / 1e6:.2f} ms",
            ),
            remedy=remedy,
        )


def launch_bound(account: Account) -> Iterator[Finding]:
    """A device that idles most of the time although nobody makes it wait."""
    if account.trace.frame("kernel").empty:
        return
    cost = account.class_frac("unattributed")
    if cost < 0.25:
        return
    yield Finding(
        kind=FindingKind.LAUNCH_BOUND,
        severity=severity(cost),
        where={},
        claim=f"The devices are idle {cost:.0%} of the step without waiting for a peer",
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.6,
        evidence=("no kernel, copy or collective was on the device in that time",),
        remedy="Fuse or capture small kernels (CUDA graphs, torch.compile), or give each step more work",
    )


def memory(account: Account) -> Iterator[Finding]:
    """A stage that holds much more memory than the others, or is nearly full."""
    full = peak_memory_frac(account.memory)
    uneven = stage_imbalance(account.memory)
    if uneven is not None and uneven[1] >= 1.3:
        yield _memory_finding(FindingKind.MEMORY_IMBALANCE, uneven[0], uneven[1], full)
    if full is not None and full >= 0.92:
        stage = int(account.memory.loc[account.memory["peak_frac"].astype(float).idxmax(), "stage"])
        yield _memory_finding(FindingKind.MEMORY_HEADROOM, stage, None, full)


def _memory_finding(
    kind: FindingKind, stage: int, ratio: float | None, full: float | None
) -> Finding:
    claim = (
        f"Stage {stage} holds {ratio:.2f} x the memory of the median of the other stages"
        if ratio is not None
        else f"Stage {stage} uses {full:.0%} of its memory"
    )
    return Finding(
        kind=kind,
        severity=Severity.WARNING if ratio is None or (full or 0) > 0.8 else Severity.INFO,
        where={"stage": stage},
        claim=claim,
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=() if full is None else (f"the fullest stage uses {full:.0%} of its capacity",),
        remedy="Shift layers, recompute activations on that stage, or split embedding and head",
    )


def missing(account: Account) -> Iterator[Finding]:
    """Ranks of the job that are not in the capture."""
    world = account.trace.run.get("world_size")
    captured = len(account.trace.ranks)
    if not isinstance(world, int) or captured >= world:
        return
    absent = sorted(set(range(world)) - set(account.trace.ranks))
    yield Finding(
        kind=FindingKind.MISSING_DATA,
        severity=Severity.WARNING,
        where={"ranks": absent[:32]},
        claim=f"{world - captured} of {world} ranks are not in the capture",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=1.0,
        evidence=(f"first missing: rank {absent[0]}",),
        remedy="A straggler among them would be seen only as waiting: capture all ranks",
    )


def _causes(account: Account, kind: str) -> list[Cause]:
    attribution = account.attribution
    return [] if attribution is None else [c for c in attribution.causes if c.kind == kind]


RULES: tuple[Callable[[Account], Iterator[Finding]], ...] = (
    straggler_ranks,
    stage_imbalances,
    bubble,
    exposed_communication,
    slow_wires,
    host_stalls,
    launch_bound,
    memory,
    missing,
)
