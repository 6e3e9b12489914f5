"""The starts of a job that its launcher restarted, for those who read step numbers."""

from __future__ import annotations

from typing import Any

from ..tables.trace import Trace
from ..wording.words import exit_words, is_missing

_COLUMNS = (
    *("attempt", "first_step", "last_step", "training_step", "ranks", "killed_ranks"),
    *("ended_rank", "wait_status"),
)
_MOST_SHOWN = 6
"""A sentence of more is not read; the newest say most."""


def attempts_of(trace: Trace) -> list[dict[str, int | None]]:
    """Return each start of the job with its steps; none where the capture does not tell."""
    rows = trace.frame("attempt")[list(_COLUMNS)].to_dict("records")
    return [
        {str(name): None if is_missing(value) else int(value) for name, value in row.items()}
        for row in rows
    ]


def attempts_text(attempts: Any) -> str:
    """Return the starts in one sentence, where there are several."""
    if not isinstance(attempts, list) or len(attempts) < 2:
        return ""
    shown = attempts if len(attempts) <= _MOST_SHOWN else attempts[-_MOST_SHOWN:]
    more = "" if shown is attempts else f" (the last {_MOST_SHOWN})"
    return f"{len(attempts)} attempts{more}: {'; '.join(map(_words, shown))}"


def _words(one: dict[str, int | None]) -> str:
    first, last, training = one["first_step"], one["last_step"], one["training_step"]
    text = f"{one['attempt']}. without a whole step"
    if first is not None and last is not None:
        text = f"{one['attempt']}. steps {first}..{last}"
        if training is not None:
            text += f", in the training {training}..{training + last - first}"
    if one["killed_ranks"]:
        text += f", {one['killed_ranks']} of {one['ranks']} ranks killed or still running"
    if one["ended_rank"] is not None and one["wait_status"] is not None:
        text += f", rank {one['ended_rank']} ended first ({exit_words(one['wait_status'])})"
    return text
