"""What is not in the capture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from meshscope.probe.schema.printable import MOST_LISTED
from meshscope.probe.schema.terms import FindingKind, Severity

from ...align.lock_step import stood_for, unit_words
from ...explain.run_account import Account
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message

_MOST_RANKS = 1024
"""Of a world of 100,000 a list of all missing ones says no more."""


def missing(account: Account) -> Iterator[Finding]:
    """Ranks of the job that are not in the capture."""
    yield from missing_ranks(account.trace)


def missing_device_activity(account: Account) -> Iterator[Finding]:
    """Ranks that launched work of which nothing was recorded: their devices look idle and are not."""
    trace = account.trace
    if not trace.row_count("runtime_call"):
        return
    launches = {}
    for rank in trace.ranks:
        if len(trace.rank_table("kernel", rank, ["rank"])):
            continue
        names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
        calls = trace.rank_frame("runtime_call", rank, ["name_id"])["name_id"].map(names)
        count = int(calls.astype(str).str.contains(_LAUNCH_CALL).sum())
        if count:
            launches[rank] = count
    if not launches:
        return
    total = sum(launches.values())
    yield Finding(
        kind=FindingKind.MISSING_DATA,
        severity=Severity.WARNING,
        where={"ranks": list(launches)},
        claim=message("missing_data.no_device_activity", launches=total),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=tuple(
            message("missing_data.launches", rank=rank, launches=count)
            for rank, count in islice(launches.items(), MOST_LISTED)
        ),
        remedy=message("missing_data.device_activity_remedy"),
        cause="device_activity",
    )


_LAUNCH_CALL = re.compile(r"Launch|Memcpy|Memset", re.IGNORECASE)


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
    represented = {other for rank in trace.ranks for other in stood_for(trace, rank)}
    if count == len(absent) and represented.issuperset(absent):
        yield _one_of_each_unit(trace, absent, captured, world)
        return
    yield Finding(
        kind=FindingKind.MISSING_DATA,
        severity=Severity.WARNING,
        where={"ranks": absent} if count == len(absent) else {},
        claim=message("missing_data.ranks", missing=count, world=world),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=1.0,
        evidence=(_missing(absent, count),),
        remedy=message("missing_data.remedy"),
    )


def _one_of_each_unit(trace: Trace, absent: list[int], captured: int, world: int) -> Finding:
    """Return the finding of a capture that holds one rank of each group in lock-step."""
    return Finding(
        kind=FindingKind.MISSING_DATA,
        severity=Severity.INFO,
        where={"ranks": absent},
        claim=message(
            "missing_data.units",
            captured=captured,
            world=world,
            unit=unit_words(trace, trace.ranks[0]),
        ),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=1.0,
        evidence=(_missing(absent, len(absent)),),
        remedy=message("missing_data.units_remedy"),
    )


def _missing(ranks: list[int], count: int) -> Message:
    """Return ascending ranks, the first of so many: ``ranks 0-3, 7 and 9 more``."""
    if count == 1:
        return message("missing_data.missing_rank", rank=ranks[0])
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    # One place of the list is for how many more there are.
    shown = spans[:MOST_LISTED]
    if len(shown) < len(spans) or count > len(ranks):
        shown = spans[: MOST_LISTED - 1]
    more = count - sum(last - first + 1 for first, last in shown)
    rest = [message("missing_data.more", ranks=more)] if more else []
    return message("missing_data.missing_ranks", spans=[*map(_span, shown), *rest])


def _span(span: list[int]) -> Message:
    first, last = span
    if first == last:
        return message("missing_data.one", rank=first)
    return message("missing_data.span", first=first, last=last)
