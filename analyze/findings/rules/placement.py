"""Axes that communicate much and lie across hosts."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ...explain.placement.launch import megatron_order
from ...explain.placement.violations import Violation, placement
from ...explain.placement.words import CLAIMS, card_remedy, card_text
from ...explain.run_account import Account
from ...tables.results import Finding, Where
from ...wording.labels import axis_label
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
            evidence=("the cost is an upper bound: exposed transfers of the axis",) if cost else (),
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
            evidence=tuple(_evidence(found)),
            remedy=_remedy(found),
            cause=found.code.value,
        )


def violation_text(found: Violation) -> str:
    """Return what is wrong in one sentence."""
    label = axis_label(found.axis.value)
    return f"{label[:1].upper()}{label[1:]} {CLAIMS[found.code]}"


def _evidence(found: Violation) -> Iterator[str]:
    yield f"the busiest host sends {found.left_bytes / 1e6:,.1f} MB per step to others on this axis"
    yield f"exposed transfers of the axis: {found.exposed_ns / 1e6:.2f} ms per step"
    if found.gain_ns is None:
        yield "no other order of the ranks is predicted to be faster by 1 % from the rates of this run"
    else:
        yield (
            f"order {found.order} returns {found.gain_ns / 1e6:.2f} ms per step by replay, at the best "
            "latency and rate of this run inside a host and across"
        )
        if found.own_gain_ns is not None:
            yield f"with this axis alone faster: {found.own_gain_ns / 1e6:.2f} ms per step"


def _remedy(found: Violation) -> str:
    if found.order is None:
        return "Run meshscope topology to see the mesh on the hosts"
    return (
        f"Order the ranks {found.order}, slowest first (Megatron: order={megatron_order(found.order)}); "
        "meshscope topology prints a rank file"
    )
