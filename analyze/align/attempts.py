"""The starts of a job that its launcher restarted, for those who read step numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..tables.trace import Trace
from ..wording.message import Message, message
from ..wording.words import is_missing

_COLUMNS = (
    *("attempt", "first_step", "last_step", "training_step", "ranks", "killed_ranks"),
    *("ended_rank", "wait_status"),
)
_MOST_SHOWN = 6
"""A sentence of more is not read; the newest say most."""


def attempts_of(trace: Trace) -> list[dict[str, int | None]]:
    """Return each start of the job with its steps; none where the capture does not have them."""
    rows = trace.frame("attempt")[list(_COLUMNS)].to_dict("records")
    return [
        {str(name): None if is_missing(value) else int(value) for name, value in row.items()}
        for row in rows
    ]


def attempts_message(attempts: Any) -> Message | None:
    """Return the starts in one sentence, where there are several."""
    if not isinstance(attempts, list) or len(attempts) < 2:
        return None
    shown = [message("starts.one", facts=list(_facts(one))) for one in attempts[-_MOST_SHOWN:]]
    if len(shown) < len(attempts):
        return message("starts.newest", count=len(attempts), shown=len(shown), starts=shown)
    return message("starts.all", count=len(attempts), starts=shown)


def _facts(one: dict[str, int | None]) -> Iterator[Message]:
    number, first, last = one["attempt"], one["first_step"], one["last_step"]
    if first is None or last is None:
        yield message("starts.no_step", attempt=number)
    elif (training := one["training_step"]) is None:
        yield message("starts.steps", attempt=number, steps=(first, last))
    else:
        of_training = training, training + last - first
        yield message("starts.of_training", attempt=number, steps=(first, last), same=of_training)
    if one["killed_ranks"]:
        yield message("starts.killed", killed=one["killed_ranks"], ranks=one["ranks"])
    if one["ended_rank"] is not None and one["wait_status"] is not None:
        status = one["wait_status"]
        yield message("starts.ended_first", rank=one["ended_rank"], status=status)
