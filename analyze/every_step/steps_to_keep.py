"""Which steps of a run keep their records: the newest, and those around what was found."""

from __future__ import annotations

from ..scale.first_answer import outlook_of
from ..scale.store import Summaries
from ..tables.part import StepRange

AROUND = 20
"""Steps before and behind one at which something begins or ends: enough to compare with."""
LONGEST = 5
"""So many of the longest steps are kept with their neighbours: something took place there."""


def newest(made: Summaries, count: int) -> tuple[StepRange, ...]:
    """Return the last steps of a run, so many; none of a run without steps."""
    steps = outlook_of(made).blocks.steps["step"].to_pylist()
    return (StepRange(steps[-count:][0], steps[-1]),) if steps else ()


def around_findings(made: Summaries) -> tuple[StepRange, ...]:
    """Return the steps around the begin and end of what makes ranks slow, and around the longest steps.

    Args:
        made: The summaries of the run.

    Raises:
        TraceFormatError: No step was finished by all ranks, or no pass was recorded.
    """
    answer, blocks = outlook_of(made)
    table = blocks.steps
    order = table["step_s"].to_numpy().argsort(kind="stable")[::-1]
    places = table["step"].to_numpy()[order[:LONGEST]].tolist()
    for slow in [] if answer is None else answer.slow:
        for first, last in slow.verdict.slow_steps:
            places += [first, last]
    return tuple(StepRange(max(step - AROUND, 0), step + AROUND) for step in places)
