"""What is not in the capture."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

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
        evidence=(f"first missing: rank {absent[0]}",),
        remedy="A straggler among them would be seen only as waiting: capture all ranks",
    )
