"""What is not in the capture."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
from ..results import Finding
from ..trace import Trace

MOST_LISTED = 32


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
    absent = list(islice((rank for rank in range(world) if rank not in present), MOST_LISTED))
    yield Finding(
        kind=FindingKind.MISSING_DATA,
        severity=Severity.WARNING,
        where={"ranks": absent},
        claim=f"{world - captured} of {world} ranks are not in the capture",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=1.0,
        evidence=(f"missing: {_spans(absent)}{' …' if world - captured > len(absent) else ''}",),
        remedy="A straggler among them would be seen only as waiting: capture all ranks",
    )


def _spans(ranks: list[int]) -> str:
    """Return ascending ranks in words: ``ranks 0 to 3, 7``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    named = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(named)}"
