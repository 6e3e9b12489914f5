"""Hosts of a job with their sockets and network cards, as far as they are stated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One network card of a host."""

    name: str
    socket: int | None
    """Which socket it hangs on; None where that is not stated."""
    bytes_per_s: float | None
    ranks: tuple[int, ...]
    """Who sends through it; empty where all ranks of the host do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One host."""

    name: str
    ranks: tuple[int, ...]
    sockets: tuple[tuple[int, ...], ...] = ()
    """Ranks by socket of their device; empty where that is not stated."""
    cards: tuple[Card, ...] = ()

    def socket_of(self, rank: int) -> int | None:
        """Return the socket of the device of a rank; None where that is not stated."""
        return next((at for at, ranks in enumerate(self.sockets) if rank in ranks), None)

    def cards_of(self, rank: int) -> tuple[Card, ...]:
        """Return the cards that a rank sends through."""
        return tuple(card for card in self.cards if not card.ranks or rank in card.ranks)
