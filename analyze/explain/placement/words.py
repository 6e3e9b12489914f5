"""What is wrong with an axis that lies badly, in words; rules and reports share them."""

from __future__ import annotations

from ...wording.labels import axis_label, rank_words
from ...wording.words import joined
from .cards import CardCode, CardViolation, Unchecked
from .violations import ViolationCode

CLAIMS = {
    ViolationCode.INNER_AXIS_CROSSES: "groups cross hosts although each fits on one",
    ViolationCode.RING_TURNS: "rings return to a host that they had left",
    ViolationCode.PIPELINE_INSIDE: "groups cross hosts while pipeline neighbours share one",
}
"""After the name of the axis."""

UNCHECKED = {
    Unchecked.SOCKETS: "sockets of network cards: state sockets and nic of each [[host]]",
    Unchecked.SPEEDS: "unequal rails: sample ports with the agent, or state the nic of each [[host]]",
}
"""What was not checked, and what would allow it."""


def card_text(found: CardViolation) -> str:
    """Return what is wrong with a card in one sentence."""
    port = "Ports" if found.port is None else f"Port {found.port}"
    if found.code is CardCode.OTHER_SOCKET:
        verb = "sends" if len(found.ranks) == 1 else "send"
        ranks = rank_words(list(found.ranks))
        return f"{ranks[:1].upper()}{ranks[1:]} of host {found.host} {verb} through {found.port} on the other socket"
    speed, usual = ((value or 0.0) / 1e9 for value in (found.bytes_per_s, found.others_bytes_per_s))
    axis = "" if found.axis is None else f" on {axis_label(found.axis.value)}"
    verb = "give" if found.port is None else "gives"
    return f"{port} of host {found.host} {verb} each rank {speed:.1f} GB/s, other members have {usual:.1f} GB/s{axis}"


def card_remedy(found: CardViolation) -> str:
    """Return what to do about a card."""
    if found.code is CardCode.OTHER_SOCKET:
        return "Bind these ranks to a card of their socket (NCCL_IB_HCA, numactl), or move the card"
    return (
        "Give all members of a group equal ports: check the negotiated speed, or exchange the host"
    )


def unchecked_text(codes: list[Unchecked]) -> str:
    """Return what was not checked, in one line; nothing where all was."""
    return f"Not checked: {joined([UNCHECKED[code] for code in codes])}." if codes else ""
