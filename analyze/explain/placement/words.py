"""What is wrong with an axis that lies badly, in words; rules and reports share them."""

from __future__ import annotations

from ...wording.message import Message, message
from .cards import CardCode, CardViolation, Unchecked
from .estimates import NoPrice
from .violations import ViolationCode

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
