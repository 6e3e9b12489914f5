"""Clocks of different hosts that disagree, or that disagreed and were corrected."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ...align.clocks.agreement import MAX_SKEW_NS
from ...explain.run_account import Account
from ...tables.results import Finding
from ...wording.message import message


def clock_skew(account: Account) -> Iterator[Finding]:
    """Ranks whose clock is off by more than collectives can explain."""
    offsets = account.clock_offsets
    if offsets.empty:
        return
    worst, size = int(offsets.index[0]), float(offsets.iloc[0])
    yield Finding(
        kind=FindingKind.CLOCK_SKEW,
        severity=Severity.CRITICAL,
        where={"ranks": [int(rank) for rank in offsets.index[:32]]},
        claim=message("clock_skew.claim", ranks=len(offsets)),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.95,
        evidence=(message("clock_skew.offset", rank=worst, offset_ns=size),),
        remedy=message("clock_skew.remedy"),
    )


def corrected_clocks(account: Account) -> Iterator[Finding]:
    """Wall clocks of a foreign trace that had to be corrected.

    Our own captures are on monotonic clocks, of which no two hosts' agree: to correct
    them is no news.
    """
    trace = account.trace
    rows = trace.frame("clock_sync")
    rows = rows[rows["offset_ns"].abs() > MAX_SKEW_NS]
    if not trace.capabilities.uses_wall_clocks or rows.empty:
        return
    clocks = set(rows["host"].astype(str))
    ranks = [rank for rank in trace.ranks if trace.clock_of(rank) in clocks]
    worst = rows.iloc[int(rows["offset_ns"].abs().argmax())]
    yield Finding(
        kind=FindingKind.CLOCK_SKEW,
        severity=Severity.INFO,
        where={"ranks": ranks[:32]},
        claim=message("clock_skew.corrected", ranks=len(ranks)),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            message(
                "clock_skew.moved",
                host=str(worst["host"]),
                offset_ns=int(worst["offset_ns"]),
                error_ns=int(worst["error_ns"]),
                reference_host=str(worst["reference_host"]),
            ),
        ),
        remedy=message("clock_skew.corrected_remedy"),
    )
