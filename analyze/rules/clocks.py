"""Clocks of different hosts that disagree."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
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
