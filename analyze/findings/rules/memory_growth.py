"""Memory that grows until it is full."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.memory.growth import growing_ranks
from ...explain.run_account import Account
from ...tables.results import Finding, Where
from ...wording.message import Message, message

MOST_LISTED = 32
SOON_S = 3600.0
"""Memory that is full within that is critical."""
ALIKE = 0.5
"""Ranks that grow at least so much as fast as the fastest are named with it."""


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
    yield Finding(
        kind=FindingKind.MEMORY_HEADROOM,
        severity=Severity.CRITICAL if left_s is not None and left_s <= SOON_S else Severity.WARNING,
        where=where,
        claim=_claim(sorted(ranks), first, left_s),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=tuple(_evidence(account, growing, first)),
        remedy=message("memory_growth.remedy"),
    )


def _claim(ranks: list[int], first: pd.Series, left_s: float | None) -> Message:
    owner = message("memory_growth.process")
    if first["is_device"]:
        owner = message("memory_growth.device")
    pace = float(first["per_step_bytes"])
    if left_s is None:
        return message("memory_growth.claim", owner=owner, ranks=ranks, per_step_bytes=pace)
    return message(
        "memory_growth.claim_full_in",
        owner=owner,
        ranks=ranks,
        per_step_bytes=pace,
        left_ns=left_s * 1e9,
    )


def _left_s(row: pd.Series, step_time_ns: float) -> float | None:
    """Return when the memory is full at this pace; None where its size is not known."""
    if pd.isna(row["capacity_bytes"]):
        return None
    steps = max(0.0, float(row["capacity_bytes"]) - row["held_bytes"]) / row["per_step_bytes"]
    return float(steps * step_time_ns / 1e9)


def _evidence(account: Account, growing: pd.DataFrame, first: pd.Series) -> Iterator[Message]:
    rank, held_bytes, steps = int(first["rank"]), int(first["held_bytes"]), int(first["steps"])
    yield message("memory_growth.holds", rank=rank, held_bytes=held_bytes, steps=steps)
    if pd.isna(first["capacity_bytes"]):
        yield message("memory_growth.no_capacity")
    else:
        yield message("memory_growth.capacity", capacity_bytes=int(first["capacity_bytes"]))
    steady = len(account.trace.ranks) - len(growing)
    if steady > 0:
        yield message("memory_growth.steady", ranks=steady)
