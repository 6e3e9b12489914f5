"""Tables of what the manifests of ranks say: the attempts of a job, the levels it was recorded at and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from ..schema.columns import arrow_type
from ..schema.manifest import RECORDING_KEY, TRAINING_STEP_KEY
from ..schema.note import Note, note
from ..schema.summary_tables import ATTEMPT, RECORDING
from ..schema.terms import CaptureLevel


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


_NUMBERS = {
    "step": False,
    "one_in": True,
    "start_ns": True,
    "steps": False,
    "dur_ns": False,
    "cost_ns": True,
    "queued_ns": True,
}
"""Whole numbers of a stretch, and whether they may be unknown."""
_LEVELS = frozenset(level.value for level in CaptureLevel)


def recording_table(manifests: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Return the ``recording`` table; a stretch that is malformed is left out."""
    rows = [
        {"rank": rank, **stretch}
        for rank, manifest in sorted(manifests.items())
        for stretch in _stretches(manifest)
    ]
    types = {
        "rank": pa.int32(),
        "level": pa.string(),
        "reason": pa.string(),
        **dict.fromkeys(_NUMBERS, pa.int64()),
    }
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    return RECORDING.conform(pa.table(columns))


def _stretches(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    annotations = manifest.get("annotations")
    found = annotations.get(RECORDING_KEY) if isinstance(annotations, dict) else None
    if not isinstance(found, list):
        return []
    wanted = ("level", "reason", *_NUMBERS)
    return [{name: one.get(name) for name in wanted} for one in found if _is_stretch(one)]


def _is_stretch(one: object) -> bool:
    if not isinstance(one, dict) or one.get("level") not in _LEVELS:
        return False
    if not isinstance(one.get("reason"), str | None):
        return False
    return all(
        (value is None and optional) or (type(value) is int and -(1 << 63) <= value < 1 << 63)
        for name, optional in _NUMBERS.items()
        for value in [one.get(name)]
    )
