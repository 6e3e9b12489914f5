"""Slow groups and links that share one network port: one finding, with each of them as evidence."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind

from ...explain.causes import Degraded, SlowPort
from ...explain.run_account import Account
from ...tables.results import Cause, Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from .bad_steps import bad_steps
from .grading import MIN_COST, relief_words, severity
from .link_ends import interface_names, interfaces, shortage_of_like
from .starved import CONFIDENCE, PROCESSORS_FIRST, starved_ends

CONFIDENCE_OF_PORT, CONFIDENCE_OF_EITHER = 0.8, 0.7
"""Where the slow places name one host, and where they are those of two."""


def slow_ports(account: Account) -> Iterator[Finding]:
    """Ports through which transfers of several groups or links are slow."""
    causes = [
        cause
        for cause in account.causes("slow_link")
        if "host" in cause.where and cause.worth_frac >= MIN_COST
    ]
    for own in ports_of(account) if causes else []:
        for cause in causes:
            if cause.where == own.where:
                yield _finding(account, cause, own)


def ports_of(account: Account) -> list[SlowPort]:
    """Return the ports that are causes."""
    return [own for own, _ in account.wires().places if isinstance(own, SlowPort)]


def _finding(account: Account, cause: Cause, own: SlowPort) -> Finding:
    trace, frame = account.trace, account.events.frame
    ranks = frame.loc[own.events, "rank"].unique().tolist()
    at_port = [rank for rank in ranks if trace.clock_of(rank) in own.hosts]
    starved = starved_ends(account, at_port)
    like = shortage_of_like(account, own.places, at_port) if starved else None
    is_starved = bool(starved) and like is None
    ports = [port for host in own.hosts for port in interface_names(trace, host, at_port)]
    remedy = message("slow_port.remedy", hosts=own.hosts)
    if ports:
        remedy = message("slow_port.remedy_ports", hosts=own.hosts, ports=sorted(set(ports)))
    if is_starved:
        remedy = message("slow_wire.remedy_starved", first=PROCESSORS_FIRST, then=remedy)
    confidence = CONFIDENCE_OF_PORT if len(own.hosts) == 1 else CONFIDENCE_OF_EITHER
    excess = next(excess for place, excess in account.wires().places if place is own)
    by_step = account.transfers().assign(excess_ns=excess).groupby("step")["excess_ns"].sum()
    when = bad_steps(account.windows, by_step, cause.worth_frac)
    return Finding(
        kind=FindingKind.SLOW_LINK,
        severity=severity(cause.removal_gain_frac),
        where={**cause.where, **when.where},
        steps=when.steps,
        claim=_claim(trace, own),
        cost_frac=cause.share_frac,
        removal_gain_frac=cause.removal_gain_frac,
        confidence=CONFIDENCE if is_starved else confidence,
        evidence=(
            *map(_place, own.places),
            *(message("slow_port.more", axis=axis, groups=groups) for axis, groups in own.more),
            *(interfaces(trace, host) for host in own.hosts),
            message("slow_port.together"),
            *relief_words(cause, account.windows.step_time_ns),
            *(starved if like is None else [like]),
        ),
        remedy=remedy,
    )


def _claim(trace: Trace, own: SlowPort) -> Message:
    ratio = max(place.ratio for place in own.places)
    if len(own.hosts) > 1:
        return message("slow_port.claim_between", hosts=own.hosts, ratio=ratio)
    (host,) = own.hosts
    ports = interface_names(trace, host)
    if ports:
        named = message("slow_port.port_of", ports=ports, host=host)
    else:
        named = message("slow_port.network_of", host=host)
    if own.way == "out":
        return message("slow_port.claim_out", port=named, ratio=ratio)
    if own.way == "in":
        return message("slow_port.claim_in", port=named, ratio=ratio)
    return message("slow_port.claim", port=named, ratio=ratio)


def _place(place: Degraded) -> Message:
    axis, ratio = place.where["axis"], place.ratio
    if "link" in place.where:
        return message("slow_port.link", link=place.where["link"], axis=axis, ratio=ratio)
    return message("slow_port.group", group_id=place.where["group_id"], axis=axis, ratio=ratio)
