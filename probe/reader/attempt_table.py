"""The attempts of a job as a table, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from ..schema.columns import arrow_type
from ..schema.listing import listed
from ..schema.manifest import TRAINING_STEP_KEY
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


def sequel_words(one: AttemptFacts, before: AttemptFacts, *, attached_again: bool) -> str:
    """Return how an attempt follows the one before."""
    gap_s = (one.start_unix_ns - before.end_unix_ns) / 1e9
    return (
        f"attempt {one.attempt} of the job begins at step {one.first_step}, {gap_s:.1f} s after the "
        f"one before had ended; {_done_again(one, before, attached_again=attached_again)}"
    )


def _done_again(one: AttemptFacts, before: AttemptFacts, *, attached_again: bool) -> str:
    if attached_again:
        return "what the ranks did in between was not recorded"
    if one.training_step is None:
        return "which steps of the training it did again is not recorded"
    begins = f"that is step {one.training_step} of the training"
    if before.training_step is None or before.last_step is None:
        return begins
    reached = before.training_step + before.last_step - before.first_step + 1
    again = reached - one.training_step
    if again > 0:
        return f"{begins}, of which it did {again} steps again" if again > 1 else (
            f"{begins}, which it did again"
        )  # fmt: skip
    return begins if again == 0 else f"{begins}, {-again} steps further on"


def absent_words(number: int, absent: Sequence[int]) -> str:
    """Return which ranks an attempt has no capture of."""
    return f"attempt {number} of the job has no capture of ranks {listed(absent)}"
