"""Devices that run below their normal clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import reduce
from operator import or_
from typing import Any

import pandas as pd

from meshscope.probe.schema.terms import FindingKind

from ...account.devices.health import POWER_CAP, THROTTLES, device_health
from ...account.devices.steps import HOLD_NS
from ...explain.causes import ranks_of
from ...explain.causes.clocks import MAX_RATIO
from ...explain.run_account import Account
from ...tables.results import Cause, Finding, Where
from ...wording.message import Message, Text, message
from .grading import MIN_COST, severity

MIN_THROTTLED = 0.1
"""Share of the samples with a fault reason from which a device counts as throttled."""
MAX_CLOCK_RATIO = 0.95
"""Clock over that of its peers up to which a device counts as slow."""
_REMEDIES = {
    0x40: message("clock_throttle.remedy_cooling"),
    0x20: message("clock_throttle.remedy_cooling"),
    0x80: message("clock_throttle.remedy_power_supply"),
    0x08: message("clock_throttle.remedy_slowdown"),
    0x04: message("clock_throttle.remedy_power_cap"),
}
"""By reason, the most telling first."""
_LOCKED = message("clock_throttle.remedy_locked")

Row = dict[Hashable, Any]


def clock_throttle(account: Account) -> Iterator[Finding]:
    """Devices that the driver holds back, or whose clock is below that of their peers.

    What a lower clock costs the replay tells, one cause a host. Of a device that is held
    back without being slower than its peers no cost is known; ranks of one host with the
    same reasons are one finding, for they share cooling and power.
    """
    if account.windows.frame.empty or account.trace.per_step_clock:
        return
    if not account.trace.row_count("device_sample"):
        return
    rows = _rows(account)
    covered: set[int] = set()
    for cause in account.causes("clock_throttle"):
        own = rows[rows["rank"].isin(ranks_of(cause))]
        cost = cause.worth_frac
        if cost >= MIN_COST or own["flagged"].any():
            covered.update(ranks_of(cause))
            yield _finding(account, own.to_dict("records"), cause)
    flagged = rows[rows["flagged"] & ~rows["rank"].isin(covered)]
    for _, own in flagged.groupby(["host", "reasons"]):
        yield _finding(account, own.to_dict("records"), None)


def _rows(account: Account) -> pd.DataFrame:
    """Return what was sampled of each rank's device at work, and what its clock cost the rank.

    Returns:
        Columns of ``device_health``, and ``ratio`` (clock over that of its peers, in the slow
        steps if there are any), ``slow``, ``flagged``, ``reasons``, ``first`` and ``last`` (slow
        step), ``clock_ns`` (its cost per step).
    """
    frame, shift_ns = account.windows.frame, account.windows.default_shift_ns
    begin_ns = int(frame["start_ns"].min()) - shift_ns
    end_ns = int(frame["end_ns"].max()) - shift_ns
    rows = device_health(account.trace, begin_ns - HOLD_NS, end_ns + HOLD_NS)
    steps = account.devices.frame
    by_step = steps.assign(ratio=steps["clock_hz"] / steps["peer_hz"])
    slow_steps = by_step[by_step["ratio"] <= MAX_RATIO].groupby("rank")
    found = slow_steps.agg(ratio=("ratio", "mean"), first=("step", "min"), last=("step", "max"))
    rows = rows.merge(found, on="rank", how="left")
    slow = rows["clock_hz"] / rows["peer_hz"] <= MAX_CLOCK_RATIO
    throttled = rows["throttled_frac"] >= MIN_THROTTLED
    # At the power cap all busy devices arrive; only one that is slower for it is named.
    reasons = rows["mask"].where(rows["ratio"].notna(), rows["mask"] & ~POWER_CAP)
    cost = dict[int, float]()
    if account.attribution is not None:
        ranks = account.attribution.ranks
        cost = dict(zip(ranks["rank"].tolist(), ranks["clock_ns"].tolist(), strict=True))
    return rows.assign(
        slow=slow,
        flagged=slow | throttled,
        reasons=reasons,
        clock_ns=rows["rank"].map(cost).fillna(0.0),
    )


def _finding(account: Account, rows: list[Row], cause: Cause | None) -> Finding:
    ranks = sorted(int(row["rank"]) for row in rows)
    mask = reduce(or_, (int(row["reasons"]) for row in rows))
    share = gain = _without_cause(account, rows)
    if cause is not None:
        share, gain = cause.share_frac, cause.removal_gain_frac
    cost = None if share is None or gain is None else max(share, gain)
    return Finding(
        kind=FindingKind.CLOCK_THROTTLE,
        severity=severity(cost),
        where=_where(account, rows),
        claim=_claim(ranks, mask, rows),
        cost_frac=share,
        removal_gain_frac=gain,
        confidence=0.9 if mask else 0.7,
        evidence=tuple(_evidence(row, mask) for row in rows[:_MOST_SHOWN]),
        remedy=next((_REMEDIES[bit] for bit in _REMEDIES if mask & bit), _LOCKED),
    )


def _without_cause(account: Account, rows: list[Row]) -> float | None:
    """Return what clocks cost that are no cause: nothing, where ranks were no slower for them.

    Unknown where there was no replay, or no peer to compare the clock with.
    """
    replayed = account.attribution is not None and account.attribution.causes
    return 0.0 if replayed and all(row["slow"] for row in rows) else None


def _where(account: Account, rows: list[Row]) -> Where:
    ranks = sorted(int(row["rank"]) for row in rows)
    hosts = {str(row["host"]) for row in rows}
    where: Where = {"rank": ranks[0]} if len(ranks) == 1 else {"ranks": ranks}
    if len(hosts) == 1:
        where["host"] = hosts.pop()
    if len(ranks) == 1 and account.stage[ranks[0]] >= 0:
        where["stage"] = account.stage[ranks[0]]
    slow = [row for row in rows if row["ratio"] == row["ratio"]]
    if slow:
        where["steps"] = [
            int(min(row["first"] for row in slow)),
            int(max(row["last"] for row in slow)),
        ]
    return where


_MOST_SHOWN = 8


def _claim(ranks: list[int], mask: int, rows: list[Row]) -> Message:
    reasons = [word for bit, word in THROTTLES.items() if mask & bit]
    ratios = [_ratio(row) for row in rows]
    low = min((ratio for ratio in ratios if ratio == ratio), default=None)
    named: list[Text] = [*reasons] or [message("clock_throttle.no_reason")]
    if len(ranks) == 1:
        if low is None:
            return message("clock_throttle.held_back", rank=ranks[0], reasons=named)
        return message("clock_throttle.slow", rank=ranks[0], ratio=low, reasons=named)
    if low is None:
        return message("clock_throttle.held_back_many", ranks=len(ranks), reasons=named)
    return message("clock_throttle.slow_many", ranks=len(ranks), ratio=low, reasons=named)


def _ratio(row: Row) -> float:
    """Return a clock over that of its peers, in the slow steps or, if none is slow, of all samples; else NaN."""
    if row["ratio"] == row["ratio"]:
        return float(row["ratio"])
    return float(row["clock_hz"] / row["peer_hz"]) if row["slow"] else float("nan")


def _evidence(row: Row, mask: int) -> Message:
    facts = [message("clock_throttle.samples", samples=int(row["samples"])), *_facts(row, mask)]
    return message("clock_throttle.device", rank=int(row["rank"]), uuid=row["uuid"], facts=facts)


def _facts(row: Row, mask: int) -> Iterator[Message]:
    """Yield what was sampled of a device, as far as it is known."""
    if row["throttled_frac"] > 0:
        yield message("clock_throttle.with_reason", share=row["throttled_frac"])
    if mask & POWER_CAP:
        yield message("clock_throttle.capped", share=row["capped_frac"])
    clock_hz, peer_hz = row["clock_hz"], row["peer_hz"]
    if clock_hz == clock_hz and peer_hz == peer_hz:
        yield message("clock_throttle.clocks", clock_hz=clock_hz, peer_hz=peer_hz)
    elif clock_hz == clock_hz:
        yield message("clock_throttle.clock", clock_hz=clock_hz)
    if row["clock_ns"] > 0:
        yield message("clock_throttle.lost", lost_ns=row["clock_ns"])
    if row["temperature_c"] == row["temperature_c"]:
        yield message("clock_throttle.temperature", temperature_c=row["temperature_c"])
    if row["power_w"] == row["power_w"]:
        yield message("clock_throttle.power", power_w=row["power_w"])
