"""The hosts at the two ends of a slow place: which of them sends it, by which interfaces, and whether those of their like are as slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from ...account.links.ceiling import port_speeds
from ...explain.causes import Degraded
from ...explain.causes.common_port import UNEQUAL
from ...explain.causes.degraded import MAX_OFTEN
from ...explain.run_account import Account
from ...tables.trace import Trace
from ...wording.message import Message, message
from .starved import MOST_TIMES, load_of_hosts

AS_SHORT = 1.25
"""Hosts with that many times the runnable tasks a processor of others, at most, are as short as these."""


class Way(NamedTuple):
    """From which host to which a group is slow."""

    source: str
    target: str
    late_ns: float
    """By how much the target leaves later, the median."""


def slow_way(account: Account, own: Degraded) -> Way | None:
    """Return which of two hosts a slow group waits for; None where both leave it together, or it has other hosts.

    A host leaves a collective when it has received all: the one that leaves last waits for what the other sends.
    """
    frame = account.transfers()
    rows = frame.loc[own.events & ~frame["is_p2p"].to_numpy(bool), ["rank", "wire_ns"]]
    clocks = account.trace.clocks
    if not set(rows["rank"].unique().tolist()) <= set(clocks):
        return None
    wire = rows.groupby(rows["rank"].map(account.trace.clock_of))["wire_ns"].median().sort_values()
    if len(wire) != 2 or not wire.iloc[1] > UNEQUAL * wire.iloc[0]:
        return None
    return Way(str(wire.index[0]), str(wire.index[1]), float(wire.iloc[1] - wire.iloc[0]))


def shortage_of_like(
    account: Account, places: Sequence[Degraded], ranks: Iterable[int]
) -> Message | None:
    """Return what shows that processors do not make places slow: those of their fast like are as short.

    That holds between hosts: inside one, which ranks get a processor is what differs. It holds for what is slow always,
    since a load follows slowly. And it holds for what is slower by more than ``MOST_TIMES`` what the like take: so much
    chance makes of a shortage at most.
    """
    trace, load = account.trace, load_of_hosts(account)
    own = {trace.clock_of(rank) for rank in ranks if rank in trace.clocks}
    place = max(places, key=lambda place: place.ratio)
    is_steady = not place.is_alone and place.step_frac > MAX_OFTEN
    if not is_steady or place.ratio <= 1 + MOST_TIMES or not own or not own <= load.keys():
        return None
    like = _hosts_of_like(account, place)
    if not like or not like <= load.keys():
        return None
    most, least = max(load[host] for host in own), min(load[host] for host in like)
    if most > AS_SHORT * least:
        return None
    return message("crowded.like_too", own=round(most, 1), like=round(least, 1))


def _hosts_of_like(account: Account, place: Degraded) -> set[str]:
    """Return the hosts between which the like of a place moves."""
    frame, trace = account.events.frame, account.trace
    if not _crosses(account, frame[place.events]):
        return set()
    kinds = frame.loc[place.events, "kind"].unique()
    axis = frame["axis"].astype(str) == place.where["axis"]
    rows = frame[place.like & axis.to_numpy(bool) & frame["kind"].isin(kinds).to_numpy(bool)]
    crossing = [own for _, own in rows.groupby("group_id", observed=True) if _crosses(account, own)]
    found = {rank for own in crossing for rank in own["rank"].unique().tolist()}
    return {trace.clock_of(rank) for rank in found if rank in trace.clocks}


def _crosses(account: Account, rows: pd.DataFrame) -> bool:
    """Return whether the members of events lie on several hosts."""
    ranks = set(rows["rank"].unique().tolist())
    clocks = account.trace.clocks
    return ranks <= set(clocks) and len({account.trace.clock_of(rank) for rank in ranks}) > 1


def interface_names(trace: Trace, host: str, ranks: Iterable[int] | None = None) -> list[str]:
    """Return the network ports of a host: those that counters name, else its cards.

    Args:
        trace: The capture.
        host: As ``Trace.clock_of`` names it.
        ranks: Those that use them, where only their own cards are meant.
    """
    rows = trace.frame("link_sample")
    names = set(rows.loc[rows["host"].astype(str) == host, "port"].astype(str))
    of_host = [rank for rank in trace.ranks if trace.clock_of(rank) == host]
    own = of_host if ranks is None else [rank for rank in ranks if rank in of_host]
    cards = {
        card.name
        for machine in trace.machines
        for rank in set(own) & set(machine.ranks)
        for card in machine.cards_of(rank)
    }
    return sorted(cards if cards and (ranks is not None or not names) else names)


def interfaces(trace: Trace, host: str) -> Message:
    """Name the network ports of a host, with their speed where that is stated."""
    ports = interface_names(trace, host)
    if not ports:
        return message("link_rate.no_interface", host=host)
    speed = port_speeds(trace).get(host)
    if speed is None:
        return message("link_rate.interfaces", host=host, ports=ports)
    return message("link_rate.interfaces_speed", host=host, ports=ports, speed=speed)


def known_interfaces(trace: Trace, ranks: Iterable[int]) -> Iterator[Message]:
    """Yield the network ports of the hosts of ranks that lie on several, where they are known."""
    hosts = {trace.clock_of(rank) for rank in ranks if rank in trace.clocks}
    if len(hosts) > 1:
        yield from (interfaces(trace, one) for one in sorted(hosts) if interface_names(trace, one))
