"""Ranks that make the others wait."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import isnan
from typing import Any

from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.terms import FindingKind

from ..account import Account
from ..attribution import MAX_SUSPECTS
from ..causes import ranks_of
from ..causes.effects import excess_by_class
from ..detection import RankVerdict
from ..detection.suspicion import detect_in
from ..ledger.classes import COMPUTE_CLASSES, STALLS, UNATTRIBUTED, UNSEPARATED
from ..results import Cause, Finding, Where
from ..words import counted, opened
from .grading import MIN_COST, hidden_note, relief_words, severity
from .late_steps import late_steps
from .other_steps import against_other_steps
from .pass_counts import more_passes
from .slow_steps import Slowness, detected, slow_steps, slowness, usual, verdict_on
from .starved import starved_rank

MIN_HIDDEN_EXCESS = 0.05
"""A rank whose repair returns nothing is named from this excess, as a share of the step."""
_HARDWARE_REMEDY = (
    "Check the clocks, temperature and neighbours of rank {rank}'s device and host; "
    "swap it against a spare if it stays slow"
)
_HOST_REMEDY = "Check the cooling, power, CPU load and other processes"
_GROUP_REMEDY = "Check the host, the switch, the cooling and the power that"
MIN_CPU_SHARE = 0.5
"""Of an excess on a CPU; with less the rank was not computing."""


def straggler_ranks(account: Account) -> Iterator[Finding]:
    """A rank whose own work is longer than that of its peers, by what repairing it returns."""
    attribution = account.attribution
    if attribution is None:
        yield from _without_replay(account)
        return
    causes = {rank: c for c in account.causes("straggler_rank") for rank in ranks_of(c)}
    ranks = attribution.ranks
    suspects = ranks[ranks["suspect"]].sort_values("excess_ns", ascending=False)
    # Ranks with popular experts have more to do; they are no stragglers.
    named: set[int] = {cause.where["rank"] for cause in account.causes("expert_imbalance")}
    for own in suspects.to_dict("records"):
        cause = causes.get(int(own["rank"]))
        if own["rank"] in named or (cause is None and len(named) >= MAX_SUSPECTS):
            continue
        named.update(ranks_of(cause) if cause is not None else [int(own["rank"])])
        if _is_worth_it(cause, own["excess_ns"] / account.windows.step_time_ns):
            yield _straggler(account, own, cause)


def _without_replay(account: Account) -> Iterator[Finding]:
    """Ranks that are slow for their work, where nothing tells what that costs."""
    detection = detect_in(account.trace, account.windows, account.ledger)
    if detection is None:
        return
    for verdict in detection.suspects[:MAX_SUSPECTS]:
        where: Where = {"rank": verdict.rank}
        if account.stage[verdict.rank] >= 0:
            where["stage"] = account.stage[verdict.rank]
        when = slow_steps(account, detection, verdict.rank)
        suffix = ""
        if when is not None:
            where = {**where, **when.where}
            suffix = "" if when.are_all else f" {when.words}"
        yield Finding(
            kind=FindingKind.STRAGGLER_RANK,
            severity=severity(None),
            where=where,
            steps=() if when is None else when.steps,
            claim=f"Rank {verdict.rank} takes {verdict.slowdown:.1%} longer for its own work{suffix} "
            f"than {usual(verdict)}; what it costs is not known, because there is no replay",
            cost_frac=None,
            removal_gain_frac=None,
            confidence=_confidence({}, verdict),
            evidence=tuple(detected(account, detection, verdict.rank)),
            remedy=_HARDWARE_REMEDY.format(rank=verdict.rank),
        )


def _is_worth_it(cause: Cause | None, excess_frac: float) -> bool:
    """Return whether a suspect is named: by its cost, or by its excess if another hides it."""
    if cause is None:
        return excess_frac >= MIN_HIDDEN_EXCESS
    if cause.share_frac <= 0:
        return False
    return cause.removal_gain_frac >= MIN_COST or excess_frac >= MIN_HIDDEN_EXCESS


def _straggler(account: Account, own: dict[Hashable, Any], cause: Cause | None) -> Finding:
    rank, excess_ns = int(own["rank"]), float(own["excess_ns"])
    where: Where = {"rank": rank}
    who = f"Rank {rank} takes"
    if cause is not None and "ranks" in cause.where:
        where = {**cause.where}
        who = f"{_who(cause)} take"
    members = [rank] if cause is None else ranks_of(cause)
    stages = {account.stage[member] for member in members}
    if len(stages) == 1 and min(stages) >= 0:
        where["stage"] = stages.pop()
    detection = account.attribution.detection if account.attribution is not None else None
    late = late_steps(account, rank)
    verdict = None if late is not None else verdict_on(detection, rank)
    when = late.when if late is not None else slow_steps(account, detection, rank)
    if when is not None:
        where = {**where, **when.where}
    note, cost = "", excess_ns / account.windows.step_time_ns
    if cause is not None:
        cost = max(cause.share_frac, cause.removal_gain_frac)
        note = hidden_note(cause)
    return Finding(
        kind=FindingKind.STRAGGLER_RANK,
        severity=severity(cost),
        where=where,
        steps=() if when is None else when.steps,
        claim=_claim(who, own, slowness(own, detection, when, late), note),
        cost_frac=None if cause is None else cause.share_frac,
        removal_gain_frac=None if cause is None else cause.removal_gain_frac,
        removal_gain_interval=None if cause is None else cause.removal_gain_interval,
        confidence=_confidence(own, verdict),
        evidence=(
            *_by_member(account, members),
            *(detected(account, detection, rank) if late is None else (late.words,)),
            *against_other_steps(account, rank),
            *(() if cause is None else relief_words(cause, account.windows.step_time_ns)),
            *_straggler_evidence(account, rank, own),
        ),
        remedy=_straggler_remedy(account, own, cause),
    )


def _confidence(own: dict[Hashable, Any], verdict: RankVerdict | None) -> float:
    if verdict is not None:
        return min(0.99, verdict.confidence)
    return max(0.0, min(0.99, 1.0 - 2.0 / float(own["z"]) ** 2))


def _who(cause: Cause) -> str:
    """Return how ranks that are slow as one are called: by their host, or as a group."""
    members = ", ".join(map(str, cause.where["ranks"]))
    if "host" in cause.where:
        return f"All ranks of host {cause.where['host']} ({members})"
    return f"All ranks of the tensor-parallel group {members}"


def _by_member(account: Account, members: list[int]) -> Iterator[str]:
    """Say how slow each of several ranks is, since the rest is told of the slowest alone."""
    assert account.attribution is not None
    if len(members) < 2:
        return
    ranks = account.attribution.ranks
    own = ranks[ranks["rank"].isin(members)].sort_values("excess_ns", ascending=False)
    by_rank = own[["rank", "excess_ns"]].itertuples(index=False)
    excess = listed(f"rank {rank} by {excess_ns / 1e6:.2f} ms" for rank, excess_ns in by_rank)
    yield f"per step they exceed their peers: {excess}; what follows is of rank {own['rank'].iloc[0]}"


def _claim(who: str, own: dict[Hashable, Any], slow: Slowness, note: str) -> str:
    slower = f"{slow.slowdown:.0%} longer"
    if who.startswith("All"):
        others = f"their peers{slow.suffix}"
        return f"{who} {slower} for their own work than {others} and make the others wait{note}"
    # Without peers, other stages or other steps tell what its work should take.
    others = f"its {counted(own['peers'], 'peer')}" if own["peers"] else "expected"
    others += slow.suffix
    return f"{who} {slower} for its own work than {others} and makes the others wait{note}"


def _straggler_evidence(account: Account, rank: int, own: dict[Hashable, Any]) -> Iterator[str]:
    step = account.windows.step_time_ns
    usual = "that of its peers" if own["peers"] else "what was expected"
    yield (
        f"its own work exceeds {usual} by {own['excess_ns'] / 1e6:.2f} ms per step "
        f"({own['excess_ns'] / step:.1%} of the step; {own['z']:.0f} standard errors)"
    )
    if own["clock_ns"] > 0:
        clock = f"{own['clock_ns'] / 1e6:.2f} ms per step"
        yield f"besides, {clock} are the slow clock of its device, a cause of its own"
    excess = _class_excess(account, rank)
    if len(excess):
        yield "the excess is in " + ", ".join(f"{name} ({ns / 1e6:+.2f} ms)" for name, ns in excess)
    yield from _arrivals(account, rank)
    passes = more_passes(account, rank)
    if passes is not None:
        yield passes.words
    cpu = _cpu_per_step(account, rank)
    if cpu is not None:
        yield (
            f"CPU time of its forward and backward: {cpu[0] / 1e6:.2f} ms per step, "
            f"{cpu[1] / 1e6:.2f} ms on its peers"
        )
        starved = starved_rank(account, rank)
        if starved and _is_off_cpu(cpu, own):
            yield starved


def _arrivals(account: Account, rank: int) -> Iterator[str]:
    """Say how often it was awaited, and how long, as far as that is known."""
    row = account.waits[account.waits["rank"] == rank].iloc[0]
    if not row["collectives"]:
        return
    often = (
        f"it arrived last in {row['arrived_last']:.0f} of its {row['collectives']:.0f} collectives"
    )
    caused_ns, own_ns = (
        row[name] / len(account.windows.steps) for name in ("wait_caused_ns", "wait_ns")
    )
    if isnan(caused_ns) or isnan(own_ns):
        yield f"of the captured ranks {often}; how long others waited for it is not known"
    else:
        yield (
            f"{often}; all others together waited {caused_ns / 1e6:.1f} ms per step for it, "
            f"it waited {own_ns / 1e6:.1f} ms"
        )


def _class_excess(account: Account, rank: int) -> list[tuple[str, float]]:
    """Return the classes of its own work in which the rank exceeds its peers, largest first.

    Neither waiting nor stalls of the host: no rank is called slow for these.
    """
    peers = account.peers_of(rank)
    if not peers:
        return []
    excess = excess_by_class(account.ledger, rank, peers)
    own_time = excess.drop([name for name in excess.index if name.startswith("exposed_")])
    own_time = own_time.drop(list(STALLS))
    large = own_time[own_time > 0.1 * max(own_time.max(), 1.0)].nlargest(3)
    return [(str(name), float(ns)) for name, ns in large.items()]


def _cpu_per_step(account: Account, rank: int) -> tuple[float, float] | None:
    """Return thread CPU time in compute spans per step: of the rank, and its peers' median.

    None on a GPU, where the CPU only launches.
    """
    if not str(account.trace.run.get("device_name") or "").startswith("CPU"):
        return None
    spans = account.trace.frame("span")
    spans = spans[spans["kind"].isin(["forward", "backward"]) & spans["cpu_ns"].notna()]
    total = spans.groupby("rank")["cpu_ns"].sum() / max(spans["step"].nunique(), 1)
    peers = [peer for peer in account.peers_of(rank) if peer in total.index]
    if rank not in total.index or not peers:
        return None
    return float(total[rank]), float(total[peers].median())


def _is_off_cpu(cpu: tuple[float, float], own: dict[Hashable, Any]) -> bool:
    """Return whether most of the excess of a rank is time without a CPU."""
    return cpu[0] - cpu[1] < MIN_CPU_SHARE * float(own["excess_ns"])


def _straggler_remedy(account: Account, own: dict[Hashable, Any], cause: Cause | None) -> str:
    """Return what to look at: what the ranks are, what they do in the time, and where it goes."""
    rank, slow = int(own["rank"]), _slow_thing(own, cause)
    if not _computes(account, rank):
        return (
            f"What {slow} does between communication was not recorded: capture at level stages or above "
            "to tell a slow device from a late host"
        )
    if next((name for name, _ in _class_excess(account, rank)), "") == UNATTRIBUTED:
        return (
            f"{opened(slow)} is late without computing: look at its host (CPU contention, launch delays, "
            "a blocking call) before its GPU"
        )
    passes = more_passes(account, rank)
    if passes is not None and passes.explain(float(own["slowdown"])):
        return (
            f"Give {slow} as many microbatches as the others have, or look why it makes more passes; its "
            "device need not be slow"
        )
    cpu = _cpu_per_step(account, rank)
    if cpu is not None and _is_off_cpu(cpu, own):
        first = "give the ranks enough processors first, then " * bool(starved_rank(account, rank))
        return (
            f"{opened(slow)} takes longer without using the CPU for it: {first}look for what blocks it "
            "(a sleep, I/O, a lock, another process on its core)"
        )
    if cause is None or "ranks" not in cause.where:
        return _HARDWARE_REMEDY.format(rank=rank)
    if "host" in cause.where:
        return f"{_HOST_REMEDY} of {slow}; drain it if it stays slow"
    return f"{_GROUP_REMEDY} {slow} shares; swap its devices against spares if it stays slow"


def _slow_thing(own: dict[Hashable, Any], cause: Cause | None) -> str:
    """Return the rank, or what the ranks share that are slow as one."""
    if cause is None or "ranks" not in cause.where:
        return f"rank {int(own['rank'])}"
    members = ", ".join(map(str, cause.where["ranks"]))
    if "host" in cause.where:
        return f"host {cause.where['host']} (ranks {members})"
    return f"the tensor-parallel group of ranks {members}"


def _computes(account: Account, rank: int) -> bool:
    """Return whether anything that a rank computed was recorded."""
    by_step = account.ledger.by_step
    own = by_step.loc[by_step["rank"] == rank, [*COMPUTE_CLASSES, UNSEPARATED]]
    return bool(own.to_numpy().any())
