"""The attempts of a job as a table, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from ..schema.columns import arrow_type
from ..schema.manifest import TRAINING_STEP_KEY
from ..schema.note import Note, note
from ..schema.summary_tables import ATTEMPT


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One attempt, its steps numbered as in the run."""

    attempt: int
    first_step: int
    last_step: int | None
    """None where no step ended."""
    training_step: int | None
    """What the training calls its first step; None if nobody said."""
    start_unix_ns: int
    end_unix_ns: int
    ranks: int
    killed_ranks: int
    ended_rank: int | None
    """The rank that ended by itself before the others; None where that is not known."""
    wait_status: int | None
    """How it ended."""
    world_size: int | None
    """None where no rank said it."""
    hosts: str | None


def attempt_table(attempts: Sequence[AttemptFacts]) -> pa.Table:
    """Return the ``attempt`` table."""
    return ATTEMPT.conform(pa.Table.from_pylist([asdict(one) for one in attempts], _SCHEMA))


_SCHEMA = pa.schema([(column.name, arrow_type(column.dtype)) for column in ATTEMPT.columns])


def stated_training_step(manifest: Mapping[str, Any] | None) -> int | None:
    """Return what the training calls step 0 of a process, None if it did not say."""
    annotations = (manifest or {}).get("annotations")
    said = annotations.get(TRAINING_STEP_KEY) if isinstance(annotations, dict) else None
    if not isinstance(said, dict):
        return None
    step, number = said.get("step"), said.get("number")
    if type(step) is not int or type(number) is not int or not -_MOST <= number - step <= _MOST:
        return None
    return number - step


_MOST = 1 << 62


def sequel(one: AttemptFacts, before: AttemptFacts, *, attached_again: bool) -> Note:
    """Return how an attempt follows the one before."""
    return note(
        "scope.attempt",
        attempt=one.attempt,
        step=one.first_step,
        gap_ns=float(one.start_unix_ns - before.end_unix_ns),
        again=_done_again(one, before, attached_again=attached_again),
    )


def _done_again(one: AttemptFacts, before: AttemptFacts, *, attached_again: bool) -> Note:
    if attached_again:
        return note("again.attached")
    if one.training_step is None:
        return note("again.unknown")
    begins = one.training_step
    if before.training_step is None or before.last_step is None:
        return note("again.begins", step=begins)
    again = before.training_step + before.last_step - before.first_step + 1 - begins
    if again > 0:
        return note("again.repeated", step=begins, steps=again)
    return note("again.begins", step=begins) if again == 0 else note(
        "again.further", step=begins, steps=-again
    )  # fmt: skip
