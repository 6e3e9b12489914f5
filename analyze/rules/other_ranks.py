"""Slow ranks beyond those that have a finding each."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.terms import FindingKind

from ..account import Account
from ..causes import OTHERS, ranks_of
from ..results import Cause, Finding, Where
from .grading import MIN_COST, hidden_note, severity
from .stragglers import MIN_HIDDEN_EXCESS


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
    cost = max(cause.share_frac, cause.removal_gain_frac)
    if cost < MIN_COST and excess_frac.max() < MIN_HIDDEN_EXCESS:
        return None
    by_rank = zip(own["rank"].tolist(), (own["slowdown"] - 1).tolist(), strict=True)
    slow = [f"rank {rank} by {slower:.0%}" for rank, slower in by_rank]
    where: Where = {"ranks": cause.where["ranks"]}
    return Finding(
        kind=FindingKind.STRAGGLER_RANK,
        severity=severity(cost),
        where=where,
        claim=f"{len(own)} more ranks ({listed(own['rank'].tolist(), most=8)}) take longer for their "
        f"own work than their peers; together they cost {cause.share_frac:.1%} of the step"
        + hidden_note(cause, "them"),
        cost_frac=cause.share_frac,
        removal_gain_frac=cause.removal_gain_frac,
        removal_gain_interval=cause.removal_gain_interval,
        confidence=min(0.99, max(0.0, 1.0 - 2.0 / float(own["z"].median()) ** 2)),
        evidence=(
            f"longer than their peers are {listed(slow, most=8)}",
            f"they exceed them by {excess_frac.min():.1%} to {excess_frac.max():.1%} of the step each",
        ),
        remedy="Look at what these ranks share (host, rack, power, software); repair the slowest ranks "
        "and diagnose again, since those behind them show then",
    )
