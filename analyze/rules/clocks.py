"""Clocks of different hosts that disagree, or that disagreed and were corrected."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
from ..clocks.agreement import MAX_SKEW_NS
from ..results import Finding
from ..words import counted


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
        claim=f"The clocks of {counted(len(offsets), 'rank')} disagree with those of the others",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.95,
        evidence=(
            f"rank {worst} records ends {size / 1e6:+.3f} ms from where the other ranks put them",
        ),
        remedy="Synchronise the hosts (PTP, NTP) and record again; waits by arrival, sends and causes "
        "are not told from this capture",
    )


def corrected_clocks(account: Account) -> Iterator[Finding]:
    """Wall clocks of a foreign trace that had to be corrected.

    Our own captures are on monotonic clocks, of which no two hosts' agree: to correct
    them is no news.
    """
    trace = account.trace
    rows = trace.frame("clock_sync")
    rows = rows[rows["offset_ns"].abs() > MAX_SKEW_NS]
    if trace.origin == "meshscope" or rows.empty:
        return
    clocks = set(rows["host"].astype(str))
    ranks = [rank for rank in trace.ranks if trace.clock_of(rank) in clocks]
    worst = rows.iloc[int(rows["offset_ns"].abs().argmax())]
    yield Finding(
        kind=FindingKind.CLOCK_SKEW,
        severity=Severity.INFO,
        where={"ranks": ranks[:32]},
        claim=f"The clocks of {counted(len(ranks), 'rank')} were off and have been corrected",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            f"{worst['host']} was moved by {worst['offset_ns'] / 1e6:+.3f} ms, "
            f"give or take {worst['error_ns'] / 1e6:.3f} ms, to the clock of {worst['reference_host']}",
        ),
        remedy="Synchronise the hosts (PTP, NTP), so that nothing rests on an estimate",
    )
