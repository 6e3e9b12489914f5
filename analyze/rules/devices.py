"""Devices that run below their normal clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from meshscope.probe.schema.terms import FindingKind

from ..account import Account
from ..causes import ranks_of
from ..device_health import THROTTLES, device_health
from ..results import Cause, Finding, Where
from ..words import counted
from .grading import severity

MIN_THROTTLED = 0.1
"""Share of the samples with a fault reason from which a device counts as throttled."""
MAX_CLOCK_RATIO = 0.95
"""Clock over that of its peers up to which a device counts as slow."""
_REMEDIES = {
    0x40: "Check the cooling of the device and its host: fans, air flow, coolant, neighbours",
    0x20: "Check the cooling of the device and its host: fans, air flow, coolant, neighbours",
    0x80: "Check the power supplies of the host and the power limit of the rack",
    0x08: "Check temperature, power cables and power supplies of the host",
    0x04: "Compare the power limits of the devices (nvidia-smi -q -d POWER) and their temperatures",
}
"""By reason, the most telling first."""
_LOCKED = "Compare the clock settings of the devices (nvidia-smi -q -d CLOCK) and reset them"

Row = dict[Hashable, Any]


def clock_throttle(account: Account) -> Iterator[Finding]:
    """Devices that the driver holds back, or whose clock is below that of their peers.

    Ranks of one host with the same reasons are one finding: they share cooling and power.
    """
    frame, shift_ns = account.windows.frame, account.windows.default_shift_ns
    if frame.empty or account.trace.per_step_clock:
        return
    begin_ns = int(frame["start_ns"].min()) - shift_ns
    end_ns = int(frame["end_ns"].max()) - shift_ns
    health = device_health(account.trace, begin_ns, end_ns)
    ratio = health["clock_hz"] / health["peer_hz"]
    slow = ratio <= MAX_CLOCK_RATIO
    throttled = health["throttled_frac"] >= MIN_THROTTLED
    # At the power cap all busy devices arrive; only one that is slower for it is named.
    reasons = health["mask"].where(slow, health["mask"] & ~0x04)
    found = health.assign(ratio=ratio, slow=slow, reasons=reasons)[slow | throttled]
    for _, rows in found.groupby(["host", "reasons"]):
        first = rows.iloc[0]
        yield _finding(account, str(first["host"]), int(first["reasons"]), rows.to_dict("records"))


def _finding(account: Account, host: str, mask: int, rows: list[Row]) -> Finding:
    ranks = sorted(int(row["rank"]) for row in rows)
    causes = [c for c in account.causes("straggler_rank") if set(ranks_of(c)) & set(ranks)]
    cost = _sum(causes, "share_frac")
    gain = _sum(causes, "removal_gain_frac")
    where: Where = {"host": host}
    if len(ranks) == 1:
        where = {"rank": ranks[0], "host": host}
        if account.stage[ranks[0]] >= 0:
            where["stage"] = account.stage[ranks[0]]
    else:
        where["ranks"] = ranks
    return Finding(
        kind=FindingKind.CLOCK_THROTTLE,
        severity=severity(max(cost or 0.0, gain or 0.0) if causes else None),
        where=where,
        claim=_claim(ranks, mask, rows),
        cost_frac=cost,
        removal_gain_frac=gain,
        confidence=0.9 if mask else 0.7,
        evidence=tuple(_evidence(row, mask) for row in rows[:_MOST_SHOWN]),
        remedy=next((_REMEDIES[bit] for bit in _REMEDIES if mask & bit), _LOCKED),
    )


_MOST_SHOWN = 8


def _sum(causes: list[Cause], name: str) -> float | None:
    return float(sum(getattr(cause, name) for cause in causes)) if causes else None


def _claim(ranks: list[int], mask: int, rows: list[Row]) -> str:
    one = len(ranks) == 1
    who = (
        f"The device of rank {ranks[0]}" if one else f"The devices of {counted(len(ranks), 'rank')}"
    )
    reasons = " and ".join(word for bit, word in THROTTLES.items() if mask & bit)
    low = min((row["ratio"] for row in rows if row["slow"]), default=None)
    clock = "" if low is None else f"at {low:.0%} of the clock of its peers"
    if not one and clock:
        clock = f"at down to {low:.0%} of the clock of their peers"
    verb = "is" if one else "are"
    if not reasons:
        return f"{who} run{'s' if one else ''} {clock}, and the driver gives no reason"
    return f"{who} {verb} held back by {reasons}{', ' + clock if clock else ''}"


def _evidence(row: Row, mask: int) -> str:
    parts = [f"rank {int(row['rank'])} ({row['uuid']}), {int(row['samples'])} samples at work"]
    if row["throttled_frac"] > 0:
        parts.append(f"{row['throttled_frac']:.0%} of them with a fault reason")
    if mask & 0x04:
        parts.append(f"{row['capped_frac']:.0%} at the power cap")
    if row["clock_hz"] == row["clock_hz"]:
        peers = row["peer_hz"]
        against = "" if peers != peers else f", {peers / 1e6:.0f} MHz on the others"
        parts.append(f"median clock {row['clock_hz'] / 1e6:.0f} MHz{against}")
    if row["temperature_c"] == row["temperature_c"]:
        parts.append(f"up to {row['temperature_c']:.0f} degC")
    if row["power_w"] == row["power_w"]:
        parts.append(f"up to {row['power_w']:.0f} W")
    return "; ".join(parts)
