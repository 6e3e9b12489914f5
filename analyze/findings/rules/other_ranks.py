"""Slow ranks beyond those that have a finding each."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind

from ...explain.causes import OTHERS, ranks_of
from ...explain.run_account import Account
from ...tables.results import Cause, Finding, Where
from ...wording.message import message
from .grading import MIN_COST, MIN_SURE, hidden_facts, severity
from .stragglers import MIN_HIDDEN_EXCESS, UNSURE


def other_slow_ranks(account: Account) -> Iterator[Finding]:
    """The slow ranks that are too many for a cause each, by what repairing all of them returns."""
    for cause in account.causes(OTHERS):
        finding = _finding(account, cause)
        if finding is not None:
            yield finding


def _finding(account: Account, cause: Cause) -> Finding | None:
    """Return the finding, None where the ranks neither cost enough nor are slow enough."""
    if account.attribution is None:
        return None
    ranks, step_ns = account.attribution.ranks, account.windows.step_time_ns
    own = ranks[ranks["rank"].isin(ranks_of(cause))].sort_values("excess_ns", ascending=False)
    excess_frac = own["excess_ns"] / step_ns
    cost = cause.worth_frac
    if cost < MIN_COST and excess_frac.max() < MIN_HIDDEN_EXCESS:
        return None
    by_rank = zip(own["rank"].tolist(), (own["slowdown"] - 1).tolist(), strict=True)
    slow = [message("straggler_rank.by", rank=rank, slower=slower) for rank, slower in by_rank]
    where: Where = {"ranks": cause.where["ranks"]}
    sure = 1.0 - max(2.0 / float(own["z"].median()) ** 2, float(own["chance"].fillna(0.0).max()))
    confidence = min(0.99, max(0.0, sure))
    return Finding(
        kind=FindingKind.STRAGGLER_RANK,
        severity=severity(cost),
        where=where,
        claim=message(
            "straggler_rank.claim_others",
            count=len(own),
            ranks=own["rank"].tolist(),
            cost=cause.share_frac,
        ),
        cost_frac=cause.share_frac,
        removal_gain_frac=cause.removal_gain_frac,
        removal_gain_interval=cause.removal_gain_interval,
        confidence=confidence,
        evidence=(
            *hidden_facts(cause),
            message("straggler_rank.slower", members=slow),
            message(
                "straggler_rank.excess_each",
                least=float(excess_frac.min()),
                most=float(excess_frac.max()),
            ),
        ),
        remedy=UNSURE if confidence < MIN_SURE else message("straggler_rank.remedy_others"),
    )
