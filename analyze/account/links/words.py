"""Phases, ways and faults of ports in words; rules and reports share them."""

from __future__ import annotations

from collections.abc import Mapping

from ...wording.words import counted, joined
from .phases import Phase

PHASES: dict[Phase | None, str] = {
    Phase.GRADIENT_SUM: "in the gradient sum",
    Phase.OPTIMIZER: "in the optimizer",
    Phase.BACKWARD: "in the backward",
    Phase.FORWARD: "in the forward",
    Phase.WAITING: "while its ranks wait",
    None: "over whole steps",
}
_FAULTS = {
    "errors": "error",
    "retries": "retransmission",
    "link_downed": "link failure",
    "congestion": "congestion notification",
    "wait": "wait tick",
}
UNKNOWN = {
    "samples": "no samples of ports lie within the analysed steps; run the node agent",
    "steps": "the capture has no step marks",
    "clock": "steps have clocks of their own",
}
"""Why nothing is known of the links, after a colon."""


def way_words(direction: str) -> str:
    """Return a direction as a verb.

    >>> way_words("tx")
    'sends'
    """
    return "sends" if direction == "tx" else "receives"


def fault_words(counts: Mapping[str, int]) -> str:
    """Return counts of faults: ``3 errors and 1 link failure``."""
    return joined(
        [counted(counts[name], noun) for name, noun in _FAULTS.items() if counts.get(name)]
    )
