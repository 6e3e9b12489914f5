"""Axes that lie badly on the machines, what that costs, and the order that costs least.

What an order costs is in ``estimates``. Rules and reports share the words for what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis

from ...tables.arrays import IntArray
from ...tables.trace import Trace
from ...wording.message import Message, message
from ..run_account import Account
from .cards import CardCode, CardViolation, Unchecked, card_violations
from .crossing import Pattern, exits, groups_of, ring_turns
from .estimates import BestOrder, NoPrice, best_order
from .members import expert_places, ranks_of_places
from .traffic import Traffic, traffic_of


class ViolationCode(StrEnum):
    """What is wrong with the place of an axis."""

    INNER_AXIS_CROSSES = "inner_axis_crosses"
    """Groups that fit into a host spread over several."""
    RING_TURNS = "ring_turns"
    """A ring returns to a host that it had left."""
    PIPELINE_INSIDE = "pipeline_inside"
    """Pipeline neighbours share a host while data-parallel groups cross."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One axis that lies badly."""

    code: ViolationCode
    axis: Axis
    left_bytes: float
    """Per step, from the busiest host, on this axis."""
    exposed_ns: float
    """Exposed transfer time of the axis per step, mean of the ranks; a gain also has what others wait for it."""
    gain_ns: float | None
    """Predicted gain of the proposed order per step; None if none that has a price is better."""
    own_gain_ns: float | None
    """The part of it that is there if only this axis is faster."""
    order: str | None
    """The order with the largest predicted gain, slowest axis first."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank runs on which machine, and what is wrong with it."""

    hosts: tuple[str, ...] | None
    """By rank; None where that is unknown."""
    unknown: str | None
    """Code of what is missing: ``layout`` or ``hosts``."""
    violations: tuple[Violation, ...] = ()
    no_price: NoPrice | None = None
    """Why an order that could be better has no price; None where all such orders have one."""
    cards: tuple[CardViolation, ...] = ()


def hosts_of(trace: Trace) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the host of every rank of the mesh, or the code of what is missing."""
    if trace.layout is None:
        return None, "layout"
    ranks = range(trace.layout.world_size)
    hosts = [trace.host_of(rank) for rank in ranks]
    known = tuple(host for host in hosts if host is not None)
    return (known, None) if len(known) == len(hosts) else (None, "hosts")


def crossing_codes(
    layout: ParallelLayout, hosts: Sequence[str], experts: IntArray | None
) -> list[tuple[ViolationCode, Axis]]:
    """Return what is wrong by members and hosts alone, without any time.

    Args:
        layout: The mesh.
        hosts: By rank.
        experts: As ``expert_places`` returns them; None leaves them out.
    """
    numbers = host_numbers(hosts)
    if numbers.max() == 0:
        return []
    room = int(np.bincount(numbers).min())
    groups = {Axis.TP: groups_of(layout, Axis.TP)}
    if experts is not None:
        groups[Axis.EP] = ranks_of_places(layout)[experts]
    found = [
        (ViolationCode.INNER_AXIS_CROSSES, axis)
        for axis, own in groups.items()
        if 1 < own.shape[1] <= room and (np.ptp(numbers[own], axis=1) > 0).any()
    ]
    if layout.cp > 1 and ring_turns(layout, numbers, Axis.CP) > 0:
        found.append((ViolationCode.RING_TURNS, Axis.CP))
    inside = layout.pp > 1 and not exits(layout, numbers, Axis.PP, Pattern.CHAIN).any()
    if inside and exits(layout, numbers, Axis.DP, Pattern.RING).any():
        found.append((ViolationCode.PIPELINE_INSIDE, Axis.DP))
    return found


def placement(account: Account) -> Placement:
    """Return where the ranks run, and the axes that lie badly with their predicted cost."""
    trace = account.trace
    hosts, unknown = hosts_of(trace)
    if hosts is None or trace.layout is None:
        return Placement(hosts=None, unknown=unknown)
    codes = crossing_codes(trace.layout, hosts, expert_places(trace))
    cards = card_violations(trace, account)
    if not codes:
        return Placement(hosts=hosts, unknown=None, cards=cards)
    numbers, traffic = host_numbers(hosts), traffic_of(account)
    best, no_price = best_order(account, trace.layout, numbers, traffic)
    return Placement(
        hosts=hosts,
        unknown=None,
        violations=tuple(_priced(codes, best, trace.layout, numbers, traffic)),
        no_price=no_price,
        cards=cards,
    )


def _priced(
    codes: list[tuple[ViolationCode, Axis]],
    best: BestOrder | None,
    layout: ParallelLayout,
    hosts: IntArray,
    traffic: Sequence[Traffic],
) -> Iterator[Violation]:
    for code, axis in codes:
        if code is ViolationCode.PIPELINE_INSIDE and best is None:
            continue  # Gradients must cross somewhere: no fault unless another order is faster.
        own = [one for one in traffic if one.axis is axis]
        left = sum(exits(layout, hosts, axis, t.pattern, t.members) * t.sent_bytes for t in own)
        yield Violation(
            code=code,
            axis=axis,
            left_bytes=float(np.max(left)) if own else 0.0,
            exposed_ns=sum(one.exposed_ns for one in own),
            gain_ns=None if best is None else best.gain_ns,
            own_gain_ns=None if best is None else best.own_gain_ns.get(axis),
            order=None if best is None else best.order,
        )


def host_numbers(hosts: Sequence[str]) -> IntArray:
    """Return a number for the host of each rank, in the order they occur in."""
    names = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return np.array([names[host] for host in hosts], dtype=np.int64)


CLAIMS = {
    ViolationCode.INNER_AXIS_CROSSES: message("placement.inner_axis_crosses"),
    ViolationCode.RING_TURNS: message("placement.ring_turns"),
    ViolationCode.PIPELINE_INSIDE: message("placement.pipeline_inside"),
}
"""After the name of the axis."""

UNCHECKED = {
    Unchecked.SOCKETS: message("placement.no_sockets"),
    Unchecked.SPEEDS: message("placement.no_speeds"),
    Unchecked.EXPERTS: message("placement.no_experts"),
    Unchecked.ORDERS: message("placement.no_port_speed"),
}
"""What was not checked, and what would allow it."""

NO_PRICE = {
    NoPrice.PORT_SPEED: message("placement.beyond_recorded"),
    NoPrice.INSIDE: message("placement.nothing_inside"),
}
"""Why the gain of other orders is unknown."""


def card_text(found: CardViolation) -> Message:
    """Return what is wrong with a card in one sentence."""
    if found.code is CardCode.OTHER_SOCKET:
        if len(found.ranks) == 1:
            return message(
                "placement.other_socket_of_rank",
                rank=found.ranks[0],
                host=found.host,
                port=found.port,
            )
        return message(
            "placement.other_socket",
            ranks=list(found.ranks),
            host=found.host,
            port=found.port,
        )
    claim = _slower(found)
    if found.axis is None:
        return claim
    return message("placement.on_axis", claim=claim, axis=found.axis.value)


def _slower(found: CardViolation) -> Message:
    own, others = (value or 0.0 for value in (found.bytes_per_s, found.others_bytes_per_s))
    if found.port is None:
        return message("placement.slower_ports", host=found.host, own=own, others=others)
    return message(
        "placement.slower_port", port=found.port, host=found.host, own=own, others=others
    )


def card_remedy(found: CardViolation) -> Message:
    """Return what to do about a card."""
    if found.code is CardCode.OTHER_SOCKET:
        return message("placement.bind_ranks")
    return message("placement.equal_ports")


def unchecked_text(codes: list[Unchecked]) -> str:
    """Return what was not checked, in one line; nothing where all was."""
    if not codes:
        return ""
    return f"{message('placement.not_checked', items=[UNCHECKED[code] for code in codes])}."
