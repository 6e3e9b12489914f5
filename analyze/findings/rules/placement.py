"""Axes that communicate much and lie across hosts."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ...explain.placement.estimates import NoPrice
from ...explain.placement.launch import Refusal, may_have_experts, megatron_order
from ...explain.placement.members import expert_places
from ...explain.placement.violations import (
    CLAIMS,
    NO_PRICE,
    Violation,
    card_remedy,
    card_text,
    placement,
)
from ...explain.run_account import Account
from ...tables.results import Finding, Where
from ...tables.trace import Trace
from ...wording.message import Message, message
from .grading import severity


def topology_violations(account: Account) -> Iterator[Finding]:
    """Raise one finding for each axis that lies badly, with the order that costs least."""
    step_ns = account.windows.mean_ns
    result = placement(account)
    for card in result.cards:
        cost = None if card.cost_ns is None else card.cost_ns / step_ns
        where: Where = {"host": card.host, "ranks": list(card.ranks)}
        if card.port is not None:
            where["link"] = card.port
        yield Finding(
            kind=FindingKind.TOPOLOGY_VIOLATION,
            severity=Severity.INFO if cost is None else severity(cost),
            where=where,
            claim=card_text(card),
            cost_frac=cost,
            removal_gain_frac=None,
            confidence=0.6,
            evidence=(message("placement.cost_is_bound"),) if cost else (),
            remedy=card_remedy(card),
            cause=card.code.value,
        )
    for found in result.violations:
        cost = found.exposed_ns / step_ns
        gain = None if found.gain_ns is None else found.gain_ns / step_ns
        yield Finding(
            kind=FindingKind.TOPOLOGY_VIOLATION,
            severity=Severity.INFO if gain is None else severity(gain),
            where={"axis": found.axis.value},
            claim=violation_text(found),
            cost_frac=cost,
            removal_gain_frac=gain,
            confidence=0.6 if gain is None else 0.7,
            evidence=tuple(_evidence(found, result.no_price)),
            remedy=_remedy(found, account.trace, result.no_price),
            cause=found.code.value,
        )


def violation_text(found: Violation) -> Message:
    """Return what is wrong in one sentence."""
    return message("placement.claim", axis=found.axis.value, what=CLAIMS[found.code])


def _evidence(found: Violation, no_price: NoPrice | None) -> Iterator[Message]:
    yield message("placement.busiest_host", left_bytes=found.left_bytes)
    yield message("placement.exposed", exposed_ns=found.exposed_ns)
    if found.gain_ns is None:
        yield message("placement.no_faster_order") if no_price is None else NO_PRICE[no_price]
    else:
        yield message("placement.gain", order=found.order, gain_ns=found.gain_ns)
        yield message("placement.gain_basis")
        if found.own_gain_ns is not None:
            yield message("placement.own_gain", gain_ns=found.own_gain_ns)


def _remedy(found: Violation, trace: Trace, no_price: NoPrice | None = None) -> Message:
    if found.order is None and no_price is NoPrice.PORT_SPEED:
        return message("placement.state_speed")
    if found.order is None or trace.layout is None:
        return message("placement.see_mesh")
    experts, has_experts = expert_places(trace), may_have_experts(trace)
    megatron = megatron_order(trace.layout, found.order, experts, has_experts=has_experts)
    if isinstance(megatron, Refusal):
        return message("placement.reorder_by_hosts", order=found.order)
    return message("placement.reorder", order=found.order, megatron_order=megatron)
