"""What a capture does not tell of the causes of loss."""

from __future__ import annotations

from collections import Counter

from meshscope.probe.schema.listing import listed

from ..align.communication.events import CommunicationEvents, from_anyone
from ..wording.quantities import percent
from ..wording.words import counted
from .causes.effects import Work
from .replay.program import Program
from .slow_ranks import DetectionResult

MAX_UNSEEN = 0.2
"""Share of operations without an end above which waiting hides in the work."""
MAX_LONELY = 0.02
"""Share of operations without a member above which a replay would freeze what was waited for."""


def untold(events: CommunicationEvents) -> list[str]:
    """Return why no causes are told; nothing where they are."""
    limits = []
    if events.unseen_frac > MAX_UNSEEN:
        limits.append(
            "end times are missing, so waiting and work cannot be separated: "
            "no rank is suspected, no causes are reported"
        )
    if events.lonely_frac > MAX_LONELY:
        whom = "others that are not in the capture"
        if from_anyone(events.frame).any():
            whom = "senders that their receives do not name"
        limits.append(f"ranks waited for {whom}: what repairing a cause returns is unknown")
    return limits


def limits_of(work: Work, program: Program, events: CommunicationEvents) -> list[str]:
    """Return what is not told of causes, and which ranks and steps are not compared."""
    limits = untold(events)
    sizes = Counter(work.peer_class.values())
    alone = [rank for rank, own in work.peer_class.items() if sizes[own] < 2]
    if alone:
        limits.append(
            f"{counted(len(alone), 'rank')} without a peer that runs the same operations: "
            "a slow rank and a slow stage look alike there"
        )
    if work.deviating:
        limits.append(
            f"{counted(work.deviating, 'step')} of ranks with other operations than usual: "
            "not compared with their peers"
        )
    if program.disorder:
        limits.append(
            f"{program.disorder} of {len(program.marks)} program marks are out of order "
            "(overlapping waits of several threads, or a wrong clock)"
        )
    return limits


def slow_together(detection: DetectionResult | None) -> list[str]:
    """Say that all ranks became slower, which no comparison between them shows."""
    job = None if detection is None else detection.together
    if job is None:
        return []
    steps = listed(
        f"{first} to {last}" if last > first else f"{first}" for first, last in job.slow_steps
    )
    return [
        f"all ranks take {percent(job.slowdown or 0.0)} longer for their own work in steps {steps} than in the others, "
        "which is blamed on none of them: compare what changed there for the whole job (sequence lengths, "
        "clocks, code)"
    ]
