"""Memory that grows until it is full."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
from ..memory_growth import growing_ranks
from ..results import Finding, Where
from ..words import counted

MOST_LISTED = 32
SOON_S = 3600.0
"""Memory that is full within that is critical."""
ALIKE = 0.5
"""Ranks that grow at least so much as fast as the fastest are named with it."""
_MIB, _GIB = 1 << 20, 1 << 30


def memory_growth(account: Account) -> Iterator[Finding]:
    """Ranks whose memory grows by about the same in every step."""
    growing = growing_ranks(account.trace)
    if growing.empty:
        return
    fast = growing[growing["per_step_bytes"] >= ALIKE * growing["per_step_bytes"].iloc[0]]
    ranks = [int(rank) for rank in fast["rank"]]
    first = fast.iloc[0]
    left_s = _left_s(first, account.windows.step_time_ns)
    where: Where = {"rank": ranks[0]} if len(ranks) == 1 else {"ranks": sorted(ranks)[:MOST_LISTED]}
    who = f"rank {ranks[0]}" if len(ranks) == 1 else counted(len(ranks), "rank")
    what = "device" if first["is_device"] else "process"
    yield Finding(
        kind=FindingKind.MEMORY_HEADROOM,
        severity=Severity.CRITICAL if left_s is not None and left_s <= SOON_S else Severity.WARNING,
        where=where,
        claim=f"The {what} memory of {who} grows by {_size(first['per_step_bytes'])} a step"
        + ("" if left_s is None else f"; at this pace it is full in {_duration(left_s)}"),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=tuple(_evidence(account, growing, first)),
        remedy="Look for what is kept from step to step: losses that hold their graph, lists and caches "
        "that only grow, a loader's workers",
    )


def _left_s(row: pd.Series, step_time_ns: float) -> float | None:
    """Return when the memory is full at this pace; None where its size is not known."""
    if pd.isna(row["capacity_bytes"]):
        return None
    steps = max(0.0, float(row["capacity_bytes"]) - row["held_bytes"]) / row["per_step_bytes"]
    return float(steps * step_time_ns / 1e9)


def _evidence(account: Account, growing: pd.DataFrame, first: pd.Series) -> Iterator[str]:
    held, rank = _size(first["held_bytes"]), int(first["rank"])
    yield f"rank {rank} holds {held} after {int(first['steps'])} steps along a straight line"
    if pd.isna(first["capacity_bytes"]):
        yield "how much there is at most is not in the capture"
    else:
        yield f"{_size(first['capacity_bytes'])} is its share of what there is"
    steady = len(account.trace.ranks) - len(growing)
    if steady > 0:
        yield f"that of {counted(steady, 'other rank')} does not grow steadily"


def _size(size_bytes: float) -> str:
    if size_bytes >= _GIB:
        return f"{size_bytes / _GIB:.2f} GiB"
    return f"{size_bytes / _MIB:.2f} MiB"


def _duration(seconds: float) -> str:
    """Return a time as words, in the unit that suits it."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
