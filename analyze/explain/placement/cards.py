"""Network cards that lie badly: on the other socket, or slower than those of the replicas' other members.

Sockets come from the topology file. Speeds come from it too, else from the sampled ports of a host, which all
its ranks share. The members of a group move equal bytes, so the slowest card sets the pace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

import msgspec
import numpy as np

from meshscope.probe.schema.terms import Axis

from ...tables.trace import Trace
from ..run_account import Account
from .members import expert_places
from .traffic import Traffic, traffic_of

SLOWER = 0.9
"""Share of the median speed of the other members' cards below which a card is slower."""


class CardCode(StrEnum):
    """What is wrong with a card."""

    OTHER_SOCKET = "card_other_socket"
    """Ranks send through a card on the socket where their device is not."""
    UNEQUAL_RAILS = "unequal_rails"
    """The card is slower than those of other members of a group."""


class Unchecked(StrEnum):
    """What could not be checked."""

    SOCKETS = "network_card_socket"
    SPEEDS = "rail_speed"
    EXPERTS = "place_of_experts"
    ORDERS = "orders_without_price"


class CardViolation(msgspec.Struct, frozen=True, kw_only=True):
    """One card that lies badly."""

    code: CardCode
    host: str
    port: str | None
    """None for all ports of the host together."""
    ranks: tuple[int, ...]
    axis: Axis | None = None
    """Of the groups that it holds up."""
    bytes_per_s: float | None = None
    """Of each rank: ranks of one card share it."""
    others_bytes_per_s: float | None = None
    cost_ns: float | None = None
    """Per step, at most: exposed transfers of the axis x (1 - speed / others); None where unknown."""


class Rail(msgspec.Struct, frozen=True):
    """What a rank sends through."""

    host: str
    port: str | None
    bytes_per_s: float
    """Its share of the card."""


def unchecked(trace: Trace) -> tuple[Unchecked, ...]:
    """Return what is known of no rank."""
    cards = [(host, card) for host in trace.machines for card in host.cards]
    has_sockets = any(host.sockets and card.socket is not None for host, card in cards)
    has_experts = trace.layout is not None and trace.layout.ep > 1
    missing = [] if has_sockets else [Unchecked.SOCKETS]
    missing += [] if _rails(trace) else [Unchecked.SPEEDS]
    missing += [Unchecked.EXPERTS] if has_experts and expert_places(trace) is None else []
    return tuple(missing)


def card_violations(trace: Trace, account: Account | None) -> tuple[CardViolation, ...]:
    """Return the cards that lie badly; costs are unknown without an account."""
    found = [*_other_sockets(trace)]
    if trace.layout is not None and _rails(trace):
        found += _unequal(trace, () if account is None else traffic_of(account))
    return tuple(found)


def _other_sockets(trace: Trace) -> Iterator[CardViolation]:
    for host in trace.machines:
        for card in host.cards:
            if card.socket is None:
                continue
            own = card.ranks or host.ranks
            # A rank that has a card on its own socket too uses that one.
            far = [
                rank
                for rank in own
                if host.socket_of(rank) not in (None, card.socket)
                and all(
                    other.socket not in (None, host.socket_of(rank))
                    for other in host.cards_of(rank)
                )
            ]
            if far:
                yield CardViolation(
                    code=CardCode.OTHER_SOCKET, host=host.name, port=card.name, ranks=tuple(far)
                )


def _rails(trace: Trace) -> dict[int, Rail]:
    """Return what each rank sends through, where its speed is known."""
    found: dict[int, Rail] = {}
    for host in trace.machines:
        for rank in host.ranks:
            cards = host.cards_of(rank)
            speeds = [
                card.bytes_per_s / len(card.ranks or host.ranks)
                for card in cards
                if card.bytes_per_s is not None
            ]
            if speeds and len(speeds) == len(cards):
                name = cards[0].name if len(cards) == 1 else None
                found[rank] = Rail(host.name, name, sum(speeds))
    if found:
        return found
    sampled = _sampled_speeds(trace)
    hosts = {rank: trace.host_of(rank) for rank in trace.ranks}
    ranks = Counter(hosts.values())
    return {
        rank: Rail(host, None, sampled[host] / ranks[host])
        for rank, host in hosts.items()
        if host is not None and host in sampled
    }


def _sampled_speeds(trace: Trace) -> dict[str, float]:
    """Return what all sampled ports of each host carry together; none where one is unknown."""
    rows = trace.frame("link_sample")
    if rows.empty:
        return {}
    names = [rows["host"].astype(str), rows["port"].astype(str)]
    by_port = rows["speed_bytes_per_s"].astype("float64").groupby(names).max()
    total = by_port.groupby(level=0).sum(min_count=1)
    is_known = by_port.notna().groupby(level=0).all()
    return {str(host): float(speed) for host, speed in total[is_known].items() if speed > 0}


def _unequal(trace: Trace, traffic: tuple[Traffic, ...]) -> Iterator[CardViolation]:
    rails = _rails(trace)
    worst: dict[tuple[Axis, Rail], tuple[float, set[int]]] = {}
    group = trace.frame("group")
    for axis, ranks in zip(group["axis"].astype(str), group["ranks"], strict=True):
        own = {int(rank): rails[int(rank)] for rank in ranks if int(rank) in rails}
        if axis == Axis.OTHER or len({rail.host for rail in own.values()}) < 2:
            continue
        for rank, rail in own.items():
            others = [one.bytes_per_s for one in own.values() if one.host != rail.host]
            usual = float(np.median(others))
            if rail.bytes_per_s < SLOWER * usual:
                key = (Axis(axis), rail)
                before, members = worst.get(key, (0.0, set()))
                worst[key] = (max(before, usual), members | {rank})
    exposed = {
        axis: sum(one.exposed_ns for one in traffic if one.axis is axis) for axis, _ in worst
    }
    for (axis, rail), (usual, members) in worst.items():
        yield CardViolation(
            code=CardCode.UNEQUAL_RAILS,
            host=rail.host,
            port=rail.port,
            ranks=tuple(sorted(members)),
            axis=axis,
            bytes_per_s=rail.bytes_per_s,
            others_bytes_per_s=usual,
            cost_ns=exposed[axis] * (1 - rail.bytes_per_s / usual) if traffic else None,
        )
