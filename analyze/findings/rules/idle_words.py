"""What is said of each cause of idle time, and what is measured of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd

from meshscope.probe.schema.terms import FindingKind

from ...account.kernels.idle import (
    ALLOCATOR,
    DEVICE_WAIT,
    LAUNCH_LATENCY,
    LAUNCHING,
    LONG_CALL,
    LONG_OPERATOR,
    NOTHING,
    SYNCHRONISE,
)
from ...account.kernels.idle_report import IdleReport, called
from ...wording.message import Message, Text, message

SHOWN = 0.0005
"""The least share that is not 0.0 % in a sentence."""


class IdleWords(NamedTuple):
    """The sentences of one cause."""

    kind: FindingKind
    claim: Callable[[float], Message]
    """Of its share of the step."""
    remedy: Message
    meaning: Message | None = None
    """When idle time counts as this cause."""
    confidence: float = 0.8


IDLE_WORDS = {
    ALLOCATOR: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.allocator", share=share),
        message("idle.allocator_remedy"),
        message("idle.allocator_meaning"),
    ),
    SYNCHRONISE: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.synchronise", share=share),
        message("idle.synchronise_remedy"),
        message("idle.synchronise_meaning"),
    ),
    LONG_CALL: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.long_call", share=share),
        message("idle.long_call_remedy"),
        message("idle.long_call_meaning"),
    ),
    DEVICE_WAIT: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.device_wait", share=share),
        message("idle.device_wait_remedy"),
        message("idle.device_wait_meaning"),
    ),
    LAUNCH_LATENCY: IdleWords(
        FindingKind.LAUNCH_BOUND,
        lambda share: message("idle.launch_latency", share=share),
        message("idle.launch_latency_remedy"),
        message("idle.launch_latency_meaning"),
    ),
    LONG_OPERATOR: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.long_operator", share=share),
        message("idle.long_operator_remedy"),
        message("idle.long_operator_meaning"),
    ),
    LAUNCHING: IdleWords(
        FindingKind.LAUNCH_BOUND,
        lambda share: message("idle.launching", share=share),
        message("idle.launching_remedy"),
        message("idle.launching_meaning"),
        confidence=0.6,
    ),
    NOTHING: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.nothing", share=share),
        message("idle.nothing_remedy"),
        message("idle.nothing_meaning"),
    ),
}
UNKNOWN_WORDS = IdleWords(
    FindingKind.HOST_STALL,
    lambda share: message("idle.unknown", share=share),
    message("idle.unknown_remedy"),
    confidence=0.6,
)
REMAINDER_WORDS = IdleWords(
    FindingKind.HOST_STALL,
    lambda share: message("idle.remainder", share=share),
    message("idle.remainder_remedy"),
    confidence=0.6,
)


def evidence_of(report: IdleReport, cause: str) -> Iterator[Text]:
    """Yield what was measured of one cause, numbers first."""
    if len(report.by_rank) > 1:
        yield _by_rank(report.by_rank[cause].sort_values())
    meaning = IDLE_WORDS[cause].meaning
    if meaning is not None:
        yield meaning
    top = report.blockers[report.blockers["cause"] == cause].head(3)
    rows: Any = top.to_dict("records")
    for row in rows:
        yield message(
            "idle.blocker",
            call=called(row["name"], row["inside"]),
            share=row["idle_ns"] / report.time_ns,
            calls=row["calls"],
            most_ns=row["most_ns"],
            rank=row["rank"],
        )
    if cause == SYNCHRONISE and report.waits is not None:
        yield report.waits
    yield from report.notes.get(cause, ())


def _by_rank(share: pd.Series[float]) -> Message:
    """Return the least and the most of a rising series by rank, of two ranks or more."""
    (least, least_rank), (most, most_rank) = (
        (float(share.iloc[at]), int(share.index[at])) for at in (0, -1)
    )
    if most - least < SHOWN:
        return message("idle.alike", share=most)
    ends = {"least_rank": least_rank, "most": most, "most_rank": most_rank}
    return message("idle.by_rank", least=least, **ends)
