"""Ranks that make the others wait."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import isfinite, isnan
from typing import Any

from meshscope.probe.schema.terms import FindingKind

from ...align.lock_step import unit_words
from ...explain.attribution import MAX_SUSPECTS
from ...explain.causes import ranks_of
from ...explain.causes.effects import excess_by_class
from ...explain.run_account import Account
from ...explain.slow_ranks import Evidence, RankVerdict
from ...explain.slow_ranks.suspicion import detect_in
from ...tables.classes import COMPUTE_CLASSES, STALLS, UNATTRIBUTED, UNSEPARATED
from ...tables.results import Cause, Finding, Where
from ...wording.message import Message, message
from .bad_steps import BadSteps, per_step
from .grading import MIN_COST, MIN_SURE, hidden_facts, relief_words, severity
from .off_cpu import MIN_CPU_SHARE, cpu_per_step
from .pass_counts import more_passes
from .slow_steps import (
    PASSES,
    Slowness,
    against_other_steps,
    detected,
    late_outside_passes,
    slow_steps,
    slowness,
    verdict_on,
)
from .starved import (
    CONFIDENCE,
    PROCESSORS_FIRST,
    queued_beside_peers,
    shortage_of,
    waits_for_a_processor,
)

MIN_HIDDEN_EXCESS = 0.05
"""A rank whose repair returns nothing is named from this excess, as a share of the step."""
UNSURE = message("straggler_rank.unsure")
SHOWN_CHANCE = 1e-3
"""From this chance on that a rank is late by accident, it is said."""
UNSHOWN = 0.4
"""Confidence at most where the interval of what a repair returns holds nothing."""


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
        if _longer_frac(account, verdict, when) < MIN_COST:
            continue
        if when is not None:
            where = {**where, **when.where}
        yield Finding(
            kind=FindingKind.STRAGGLER_RANK,
            severity=severity(None),
            where=where,
            steps=() if when is None else when.steps,
            claim=_claim_of(verdict, None if when is None or when.are_all else when.message),
            cost_frac=None,
            removal_gain_frac=None,
            confidence=_confidence({}, verdict),
            evidence=(
                message("straggler_rank.no_replay"),
                *detected(account, detection, verdict.rank),
            ),
            remedy=message("straggler_rank.remedy", rank=verdict.rank)
            if verdict.confidence >= MIN_SURE
            else UNSURE,
        )


def _claim_of(verdict: RankVerdict, when: Message | None) -> Message:
    """Return the claim by what the detection found, without a replay."""
    assert verdict.slowdown is not None
    if verdict.evidence is Evidence.HISTORY and when is not None:
        slow = {"rank": verdict.rank, "slower": verdict.slowdown}
        return message("straggler_rank.claim_history", when=when, **slow)
    who = message("straggler_rank.one", unit=message("unit.rank", rank=verdict.rank))
    return _claim(who, Slowness(verdict.slowdown, when), message("straggler_rank.than_expected"))


def _longer_frac(account: Account, verdict: RankVerdict, when: BadSteps | None) -> float:
    """Return what the passes of a slow rank take longer, as a share of the step: it costs no more."""
    rows = account.ledger.by_step[account.ledger.by_step["rank"] == verdict.rank]
    if when is not None:
        rows = rows[rows["step"].isin(when.steps)]
    slowdown = verdict.slowdown or 0.0
    longer_ns = float(rows[list(PASSES)].to_numpy().sum()) * slowdown / (1.0 + slowdown)
    return longer_ns / (account.windows.step_time_ns * len(account.windows.steps))


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
    who = message("straggler_rank.one", unit=unit_words(account.trace, rank))
    than = _than(own)
    if cause is not None and "ranks" in cause.where:
        where = {**cause.where}
        who, than = _who(cause), message("straggler_rank.than_their_peers")
    members = [rank] if cause is None else ranks_of(cause)
    stages = {account.stage[member] for member in members}
    if len(stages) == 1 and min(stages) >= 0:
        where["stage"] = stages.pop()
    detection = account.attribution.detection if account.attribution is not None else None
    late = late_outside_passes(account, rank)
    verdict = None if late is not None else verdict_on(detection, rank)
    when = late.when if late is not None else slow_steps(account, detection, rank)
    if when is not None:
        where = {**where, **when.where}
    cost = excess_ns / account.windows.step_time_ns
    if cause is not None:
        cost = cause.worth_frac
    slow = slowness(own, detection, when, late)
    crowded = waits_for_a_processor(account, rank, excess_ns)
    confidence = _confidence(own, verdict)
    if cause is not None and _may_return_nothing(cause):
        confidence = min(confidence, UNSHOWN)
    confidence = min(confidence, CONFIDENCE) if crowded else confidence
    return Finding(
        kind=FindingKind.STRAGGLER_RANK,
        severity=severity(cost),
        where=where,
        steps=() if when is None else when.steps,
        claim=_claim(who, slow, than),
        cost_frac=None if cause is None else cause.share_frac,
        removal_gain_frac=None if cause is None else cause.removal_gain_frac,
        removal_gain_interval=None if cause is None else cause.removal_gain_interval,
        confidence=confidence,
        evidence=(
            *(() if cause is None else hidden_facts(cause)),
            *_by_member(account, members),
            *_over_all_steps(own, slow),
            *(detected(account, detection, rank) if late is None else late.facts),
            *against_other_steps(account, rank),
            *(() if cause is None else relief_words(cause, account.windows.step_time_ns)),
            *_straggler_evidence(account, rank, own),
            *([crowded] if crowded else ()),
        ),
        remedy=PROCESSORS_FIRST
        if crowded
        else _straggler_remedy(account, own, cause)
        if confidence >= MIN_SURE
        else UNSURE,
    )


def _may_return_nothing(cause: Cause) -> bool:
    """Return whether by its own interval it is not shown that a cause costs anything.

    Where another cause hides it, its repair alone says nothing of that.
    """
    interval = cause.removal_gain_interval
    return interval is not None and interval[0] <= 0 and cause.hidden_by is None


def _confidence(own: dict[Hashable, Any], verdict: RankVerdict | None) -> float:
    """Return how sure it is that a rank is slow: by its noise, and by what exchanging ranks finds."""
    sure = verdict.confidence if verdict is not None else 1.0 - 2.0 / float(own["z"]) ** 2
    chance = float(own.get("chance", float("nan")))
    return max(0.0, min(0.99, sure, 1.0 if isnan(chance) else 1.0 - chance))


def _who(cause: Cause) -> Message:
    """Return how ranks that are slow as one are called: by their host, or as a group."""
    ranks = cause.where["ranks"]
    if "host" in cause.where:
        return message("straggler_rank.host", host=cause.where["host"], ranks=ranks)
    return message("straggler_rank.group", ranks=ranks)


def _than(own: dict[Hashable, Any]) -> Message:
    """Return what a rank is compared with: without peers, other stages or steps show what is expected."""
    if own["peers"]:
        return message("straggler_rank.than_peers", peers=int(own["peers"]))
    return message("straggler_rank.than_expected")


def _by_member(account: Account, members: list[int]) -> Iterator[Message]:
    """Say how slow each of several ranks is, since the rest is about the slowest alone."""
    assert account.attribution is not None
    if len(members) < 2:
        return
    ranks = account.attribution.ranks
    own = ranks[ranks["rank"].isin(members)].sort_values("excess_ns", ascending=False)
    by_rank = own[["rank", "excess_ns"]].itertuples(index=False)
    each = [
        message("straggler_rank.member", rank=int(rank), excess_ns=float(excess_ns))
        for rank, excess_ns in by_rank
    ]
    yield message("straggler_rank.members", each=per_step(account.windows), members=each)
    yield message("straggler_rank.slowest_member", rank=int(own["rank"].iloc[0]))


def _claim(who: Message, slow: Slowness, than: Message) -> Message:
    slower = {"who": who, "slower": slow.slower_frac, "than": than}
    if slow.when is None:
        return message("straggler_rank.claim", **slower)
    return message("straggler_rank.claim_when", when=slow.when, **slower)


def _over_all_steps(own: dict[Hashable, Any], slow: Slowness) -> Iterator[Message]:
    """Say how slow a rank is on average, as tables have it, where the claim is about some steps."""
    slower = float(own["slowdown"]) - 1.0
    if slow.when is not None and isfinite(slower):
        yield message("straggler_rank.over_all_steps", slower=slower)


def _straggler_evidence(account: Account, rank: int, own: dict[Hashable, Any]) -> Iterator[Message]:
    step, each = account.windows.step_time_ns, per_step(account.windows)
    excess_ns = float(own["excess_ns"])
    amounts = {"excess_ns": excess_ns, "share": excess_ns / step}
    yield message("straggler_rank.excess", each=each, than=_than(own), **amounts)
    if own["chance"] > SHOWN_CHANCE:
        yield message("straggler_rank.chance", chance=float(own["chance"]))
    if own["clock_ns"] > 0:
        yield message("straggler_rank.slow_clock", clock_ns=float(own["clock_ns"]), each=each)
    parts = [
        message("straggler_rank.excess_of", name=name, share=share)
        for name, share in _class_excess(account, rank)
    ]
    if parts:
        yield message("straggler_rank.excess_in", parts=parts)
    yield from _arrivals(account, rank)
    passes = more_passes(account, rank)
    if passes is not None:
        yield passes.fact
    cpu = _cpu_per_step(account, rank)
    if cpu is not None:
        yield message("straggler_rank.cpu_time", each=each, own_ns=cpu[0], peers_ns=cpu[1])
        shortage = shortage_of(account, rank)
        explained = waits_for_a_processor(account, rank, excess_ns)
        if shortage is not None and _is_off_cpu(cpu, own) and not explained:
            counted = queued_beside_peers(account, rank)
            yield counted or message("crowded.late_not_slow", shortage=shortage)


def _arrivals(account: Account, rank: int) -> Iterator[Message]:
    """Say how often it was awaited, and how long, as far as that is known."""
    row = account.waits[account.waits["rank"] == rank].iloc[0]
    if not row["collectives"]:
        return
    often = {"last": int(row["arrived_last"]), "collectives": int(row["collectives"])}
    caused_ns, own_ns = (
        float(row[name]) / len(account.windows.steps) for name in ("wait_caused_ns", "wait_ns")
    )
    if isnan(caused_ns) or isnan(own_ns):
        yield message("straggler_rank.arrived_last_of_captured", **often)
        yield message("straggler_rank.waits_unknown")
        return
    yield message("straggler_rank.arrived_last", **often)
    each = per_step(account.windows)
    yield message("straggler_rank.waits", caused_ns=caused_ns, each=each)
    if own_ns > 0:
        yield message("straggler_rank.waited_itself", own_ns=own_ns, each=each)


def _class_excess(account: Account, rank: int) -> list[tuple[str, float]]:
    """Return the classes of its own work in which the rank exceeds its peers, with their share of that.

    Largest first, as shares of 1: their sum over a step is not the excess by collective, which is exact.

    Neither waiting nor stalls of the host: no rank is called slow for these.
    """
    peers = account.peers_of(rank)
    if not peers:
        return []
    excess = excess_by_class(account.ledger, rank, peers)
    own_time = excess.drop([name for name in excess.index if name.startswith("exposed_")])
    own_time = own_time.drop(list(STALLS))
    large = own_time[own_time > 0.1 * max(own_time.max(), 1.0)].nlargest(3)
    total = float(own_time.clip(lower=0.0).sum())
    return [(str(name), float(ns) / total) for name, ns in large.items() if ns > 0]


def _cpu_per_step(account: Account, rank: int) -> tuple[float, float] | None:
    """Return thread CPU time in compute spans per step: of the rank, and its peers' median; None if unknown."""
    total = cpu_per_step(account)
    if total is None:
        return None
    peers = [peer for peer in account.peers_of(rank) if peer in total.index]
    if rank not in total.index or not peers:
        return None
    return float(total[rank]), float(total[peers].median())


def _is_off_cpu(cpu: tuple[float, float], own: dict[Hashable, Any]) -> bool:
    """Return whether most of the excess of a rank is time without a CPU."""
    return cpu[0] - cpu[1] < MIN_CPU_SHARE * float(own["excess_ns"])


def _straggler_remedy(account: Account, own: dict[Hashable, Any], cause: Cause | None) -> Message:
    """Return what to look at: what the ranks are, what they do in the time, and where it goes."""
    rank, slow = int(own["rank"]), _slow_thing(own, cause)
    if not _computes(account, rank):
        return message("straggler_rank.remedy_not_recorded", who=slow)
    if next((name for name, _ in _class_excess(account, rank)), "") == UNATTRIBUTED:
        return message("straggler_rank.remedy_not_computing", who=slow)
    passes = more_passes(account, rank)
    if passes is not None and passes.explain(float(own["slowdown"])):
        return message("straggler_rank.remedy_passes", who=slow)
    cpu = _cpu_per_step(account, rank)
    if cpu is not None and _is_off_cpu(cpu, own):
        blocked = message("straggler_rank.remedy_off_cpu", who=slow)
        if shortage_of(account, rank) is None:
            return blocked
        return message("crowded.remedy_first", then=blocked)
    if cause is None or "ranks" not in cause.where:
        return message("straggler_rank.remedy", rank=rank)
    if "host" in cause.where:
        return message("straggler_rank.remedy_host", who=slow)
    return message("straggler_rank.remedy_group", who=slow)


def _slow_thing(own: dict[Hashable, Any], cause: Cause | None) -> Message:
    """Return the rank, or what the ranks share that are slow as one."""
    if cause is None or "ranks" not in cause.where:
        return message("straggler_rank.slow_rank", rank=int(own["rank"]))
    ranks = cause.where["ranks"]
    if "host" in cause.where:
        return message("straggler_rank.slow_host", host=cause.where["host"], ranks=ranks)
    return message("straggler_rank.slow_group", ranks=ranks)


def _computes(account: Account, rank: int) -> bool:
    """Return whether anything that a rank computed was recorded."""
    by_step = account.ledger.by_step
    own = by_step.loc[by_step["rank"] == rank, [*COMPUTE_CLASSES, UNSEPARATED]]
    return bool(own.to_numpy().any())
