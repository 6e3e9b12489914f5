"""Phases and faults of ports as messages; rules and reports share them."""

from __future__ import annotations

from collections.abc import Mapping

from ...wording.message import Message, message
from ...wording.words import joined
from .phases import Phase

PHASES: dict[Phase | None, Message] = {
    Phase.GRADIENT_SUM: message("port_phase.gradient_sum"),
    Phase.OPTIMIZER: message("port_phase.optimizer"),
    Phase.BACKWARD: message("port_phase.backward"),
    Phase.FORWARD: message("port_phase.forward"),
    Phase.WAITING: message("port_phase.waiting"),
    None: message("port_phase.whole_steps"),
}
UNKNOWN = {
    "samples": message("links.no_samples"),
    "steps": message("links.no_steps"),
    "clock": message("links.own_clocks"),
}
"""Why nothing is known of the links, after a colon."""


def fault_messages(counts: Mapping[str, int]) -> list[Message]:
    """Return the faults that a port counted, without those of which it has none."""
    found = {
        "errors": message("port_fault.errors", count=counts.get("errors")),
        "retries": message("port_fault.retries", count=counts.get("retries")),
        "link_downed": message("port_fault.link_downed", count=counts.get("link_downed")),
        "congestion": message("port_fault.congestion", count=counts.get("congestion")),
        "wait": message("port_fault.wait", count=counts.get("wait")),
    }
    return [said for name, said in found.items() if counts.get(name)]


def fault_words(counts: Mapping[str, int]) -> str:
    """Return counts of faults: ``3 errors and 1 link failure``."""
    return joined(list(map(str, fault_messages(counts))))
