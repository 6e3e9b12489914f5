"""Network interfaces of hosts, by name and speed, as counters or a topology know them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...account.links.ceiling import port_speeds
from ...tables.trace import Trace
from ...wording.message import Message, message


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
