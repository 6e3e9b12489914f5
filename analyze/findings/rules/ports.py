"""Network ports that are full, make faults, or carry what is not of this job."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from meshscope.probe.schema.terms import Axis, FindingKind, Severity

from ...account.links.counters import PortKind
from ...account.links.phases import Phase
from ...account.links.use import SLOWER, HostTraffic, LinkUse, PortFaults, PortUse, link_use
from ...account.links.words import PHASES, fault_messages
from ...explain.run_account import Account
from ...tables.classes import WIRE_CLASSES
from ...tables.results import Finding
from ...wording.message import Message, message
from ...wording.words import axis_label

FULL = 0.9
"""Share of its speed from which a port is full."""
NOT_FULL = 0.75
"""Share up to which the ports of other hosts are not."""
FOREIGN = 0.05
"""Share of the speed of a host's ports from which traffic of others is worth a finding."""
LEAST_FOREIGN = 1e6
"""Bytes/s from which it is worth one where the speed is unknown, if they are more than the job's own, too."""
HEADERS = 1.1
"""Counters also count headers: at most so many times the recorded bytes."""


def network_ports(account: Account) -> Iterator[Finding]:
    """Raise what the counters of the ports show that peers do not."""
    if not account.trace.row_count("link_sample"):
        return
    found = link_use(account.trace, account.windows, account.events)
    yield from _full(account, found)
    yield from _faulty(account, found)
    for one in _others(account, found):
        yield _foreign_finding(one)


def _full(account: Account, found: LinkUse) -> Iterator[Finding]:
    """The phase in which a port is fullest, where the ports of all other hosts are not full."""
    ports = [port for port in found.ports if port.kind == PortKind.NETWORK.value]
    for port in ports:
        peers = [
            other
            for other in ports
            if other.host != port.host and other.direction == port.direction
        ]
        best: tuple[float, float, Phase | None] | None = None
        for phase in (*Phase, None):
            own = _used(port, phase)
            others = [used for peer in peers if (used := _used(peer, phase)) is not None]
            if own is None or own < FULL or not others or median(others) > NOT_FULL:
                continue
            error = 0.0 if phase is None else port.used(port.errors[phase]) or 0.0
            if own - 2 * error <= NOT_FULL:
                continue
            if best is None or own > best[0]:
                best = (own, median(others), phase)
        if best is not None:
            yield _full_finding(account, found, port, best)


def _used(port: PortUse, phase: Phase | None) -> float | None:
    return port.used(port.mean_bytes_per_s if phase is None else port.rates[phase])


def _full_finding(
    account: Account, found: LinkUse, port: PortUse, best: tuple[float, float, Phase | None]
) -> Finding:
    own, others, phase = best
    axes = [axis for axis in found.axes if axis.host == port.host]
    if phase is Phase.GRADIENT_SUM:
        axes = [axis for axis in axes if axis.axis == Axis.DP.value]
    wires = dict(zip((axis.value for axis in Axis), WIRE_CLASSES, strict=True))
    exposed = sum(account.class_frac(wires[axis.axis]) for axis in axes if axis.axis in wires)
    cost = exposed * (1 - others / own)
    groups = [group for axis in axes for group in axis.groups]
    evidence = [
        message(
            "network_port.samples",
            intervals=port.intervals,
            interval_ns=port.interval_ns,
            others=others,
        )
    ]
    if groups:
        names = [axis_label(axis.axis) for axis in axes]
        evidence.append(message("network_port.groups", groups=groups, axes=names))
    used = {"used": own, "others": others, "phase": PHASES[phase]}
    place = {"port": port.port, "host": port.host}
    claim = message("network_port.claim_receives", **used, **place)
    if port.direction == "tx":
        claim = message("network_port.claim_sends", **used, **place)
    return Finding(
        kind=FindingKind.NETWORK_PORT,
        severity=Severity.WARNING if cost >= 0.02 else Severity.INFO,
        where={"host": port.host, "link": port.port},
        claim=claim,
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.7,
        evidence=tuple(evidence),
        remedy=message("network_port.remedy_full"),
        cause="saturated",
    )


def _faulty(account: Account, found: LinkUse) -> Iterator[Finding]:
    step = found.step_ns
    for one in found.faults:
        is_slower = one.ratio is not None and one.ratio >= SLOWER
        if not is_slower and not one.counts.get("link_downed"):
            continue
        yield Finding(
            kind=FindingKind.NETWORK_PORT,
            severity=Severity.WARNING,
            where={"host": one.host, "link": one.port},
            claim=message(
                "network_port.claim_faults",
                port=one.port,
                host=one.host,
                faults=fault_messages(one.counts),
            ),
            cost_frac=None,
            removal_gain_frac=None,
            confidence=0.7 if is_slower else 0.5,
            evidence=tuple(_of_faults(one, len(account.windows.steps), step)),
            remedy=message("network_port.remedy_pauses")
            if one.is_pause
            else message("network_port.remedy_faults"),
            cause="pauses" if one.is_pause else "faults",
        )


def _of_faults(one: PortFaults, steps: int, step_ns: float) -> Iterator[Message]:
    yield message("network_port.over", steps=steps, step_ns=step_ns)
    if one.ratio is not None:
        yield message(
            "network_port.meanwhile",
            operations=one.operations,
            ratio=one.ratio,
            groups=list(one.groups),
        )


class OtherTraffic(NamedTuple):
    """What a host sends that no recorded operation explains."""

    host: str
    extra_bytes_per_s: float
    seen: HostTraffic


def other_traffic(account: Account) -> Iterator[OtherTraffic]:
    """Yield the hosts whose counters show bytes of others; none where no port was sampled."""
    if account.trace.row_count("link_sample"):
        yield from _others(account, link_use(account.trace, account.windows, account.events))


def _others(account: Account, found: LinkUse) -> Iterator[OtherTraffic]:
    if account.unseen or len(account.trace.ranks) != account.trace.run.get("world_size"):
        return
    for one in found.traffic:
        extra = one.counted_bytes_per_s - HEADERS * one.recorded_bytes_per_s
        is_used = one.recorded_bytes_per_s > 0
        least = max(one.recorded_bytes_per_s, LEAST_FOREIGN)
        if one.speed_bytes_per_s is not None:
            is_used, least = True, FOREIGN * one.speed_bytes_per_s
        if is_used and extra >= least:
            yield OtherTraffic(one.host, extra, one)


def _foreign_finding(found: OtherTraffic) -> Finding:
    one, extra = found.seen, found.extra_bytes_per_s
    claim = message("network_port.claim_other", host=one.host, extra=extra)
    if one.speed_bytes_per_s:
        share = extra / one.speed_bytes_per_s
        claim = message("network_port.claim_other_share", host=one.host, extra=extra, share=share)
    return Finding(
        kind=FindingKind.NETWORK_PORT,
        severity=Severity.INFO,
        where={"host": one.host},
        claim=claim,
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.6,
        evidence=(
            message(
                "network_port.counted",
                counted=one.counted_bytes_per_s,
                recorded=one.recorded_bytes_per_s,
            ),
        ),
        remedy=message("network_port.remedy_other"),
        cause="other_traffic",
    )
