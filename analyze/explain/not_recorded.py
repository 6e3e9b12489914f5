"""What a capture does not tell of the causes of loss."""

from __future__ import annotations

from collections import Counter

from ..align.communication.events import CommunicationEvents, from_anyone
from ..wording.limits import Limit
from ..wording.message import message
from .causes.effects import Work
from .replay.program import Program
from .slow_ranks import DetectionResult

MAX_UNSEEN = 0.2
"""Share of operations without an end above which waiting hides in the work."""
MAX_LONELY = 0.02
"""Share of operations without a member above which a replay would freeze what was waited for."""


def unknown_causes(events: CommunicationEvents) -> list[Limit]:
    """Return why no causes are reported; nothing where they are."""
    limits: list[Limit] = []
    if events.unseen_frac > MAX_UNSEEN:
        limits.append(message("unknown.ends_missing"))
    if events.lonely_frac > MAX_LONELY:
        if from_anyone(events.frame).any():
            limits.append(message("unknown.gain_of_unnamed_senders"))
        else:
            limits.append(message("unknown.gain_of_absent_ranks"))
    return limits


def limits_of(work: Work, program: Program, events: CommunicationEvents) -> list[Limit]:
    """Return what is not known of causes, and which ranks and steps are not compared."""
    limits = unknown_causes(events)
    sizes = Counter(work.peer_class.values())
    alone = [rank for rank, own in work.peer_class.items() if sizes[own] < 2]
    if alone:
        limits.append(message("doubt.ranks_without_peer", count=len(alone)))
    if work.deviating:
        limits.append(message("missing.deviating_steps", count=work.deviating))
    if program.disorder:
        limits.append(
            message("doubt.marks_out_of_order", count=program.disorder, marks=len(program.marks))
        )
    return limits


def slow_together(detection: DetectionResult | None) -> list[Limit]:
    """Say that all ranks became slower, which no comparison between them shows."""
    job = None if detection is None else detection.together
    if job is None:
        return []
    steps = [(int(first), int(last)) for first, last in job.slow_steps]
    return [message("doubt.all_ranks_slower", slower=job.slowdown or 0.0, steps=steps)]
