"""What is not in the capture."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from meshscope.probe.schema.listing import MOST_LISTED
from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
from ..capture.trace import Trace
from ..results import Finding

_MOST_RANKS = 1024


def missing(account: Account) -> Iterator[Finding]:
    """Ranks of the job that are not in the capture."""
    yield from missing_ranks(account.trace)


def missing_ranks(trace: Trace) -> Iterator[Finding]:
    """Yield the finding of a capture that lacks ranks of the job."""
    world = trace.run.get("world_size")
    captured = len(trace.ranks)
    if not isinstance(world, int) or captured >= world:
        return
    present = set(trace.ranks)
    # A torn manifest may claim more ranks than memory has room for.
    absent = list(islice((rank for rank in range(world) if rank not in present), _MOST_RANKS))
    count = world - captured
    yield Finding(
        kind=FindingKind.MISSING_DATA,
        severity=Severity.WARNING,
        where={"ranks": absent} if count == len(absent) else {},
        claim=f"{count} of {world} ranks are not in the capture",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=1.0,
        evidence=(f"missing: {_spans(absent, count)}",),
        remedy="A straggler among them would be seen only as waiting: capture all ranks",
    )


def _spans(ranks: list[int], count: int) -> str:
    """Return ascending ranks, the first of so many, in words: ``ranks 0 to 3, 7 and 9 more``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = spans[:MOST_LISTED]
    named = [str(first) if first == last else f"{first} to {last}" for first, last in shown]
    more = count - sum(last - first + 1 for first, last in shown)
    rest = f" and {more} more" if more else ""
    return f"rank{'s' if count > 1 else ''} {', '.join(named)}{rest}"
