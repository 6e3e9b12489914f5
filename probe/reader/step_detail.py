"""What a capture holds of each step of a rank: all its operations, sums, or less.

A step that was to be kept as sums counts as full where the ring still held every
record of it. Where neither its records nor its sums are there, its communication is
not known, and it counts as a step without communication records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schema.records import COMMUNICATION_SUM_RECORD, LEVEL_CODES, NO_WORD
from ..schema.ring import FIRST_SEQ
from ..schema.terms import CaptureLevel, StepDetail
from .numbers_present import NumbersPresent

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_CODES = {detail: position for position, detail in enumerate(StepDetail)}
UNKNOWN_DETAIL = -1
DETAIL_COLUMN = "detail"


@dataclass(frozen=True, slots=True)
class StepDetails:
    """The detail of each step record of a rank, in the order of recording."""

    step: Ints
    end_ns: Ints
    detail: Ints
    """Position in StepDetail; ``UNKNOWN_DETAIL`` where the writer did not say."""

    def of(self, steps: Ints) -> Ints:
        """Return the detail of steps; ``UNKNOWN_DETAIL`` for one that has no record."""
        found = np.full(len(steps), UNKNOWN_DETAIL)
        if len(self.step):
            order = np.argsort(self.step, kind="stable")
            place = np.searchsorted(self.step[order], steps, side="right") - 1
            known = (place >= 0) & (self.step[order][place] == steps)
            found[known] = self.detail[order][place[known]]
        return found

    def reach_into_full(self, steps: Ints, until_ns: Ints) -> Mask:
        """Tell which operations were waited for in the next step, and that one is full."""
        if not len(self.step):
            return np.zeros(len(steps), dtype=bool)
        order = np.argsort(self.step, kind="stable")
        place = np.searchsorted(self.step[order], steps, side="right") - 1
        over = (place >= 0) & (until_ns > self.end_ns[order][place])
        return np.asarray(over & (self.of(steps + 1) == _CODES[StepDetail.FULL]))


def step_details(tables: Mapping[str, pa.Table]) -> StepDetails:
    """Return what is held of each step of a rank, as ``add_detail`` has found it."""
    raw = tables.get("step")
    if raw is None:
        none = np.zeros(0, np.int64)
        return StepDetails(none, none, none)
    end_ns = _ints(raw, "start_ns") + _ints(raw, "dur_ns")
    return StepDetails(_ints(raw, "step"), end_ns, _ints(raw, DETAIL_COLUMN))


def add_detail(
    tables: dict[str, pa.Table],
    manifest: Mapping[str, Any] | None,
    present: NumbersPresent,
) -> None:
    """Add to the step records of a rank what is held of each, in a column of its own.

    This is for records as they were written: the writer chose steps by its own numbers.

    Args:
        tables: Records by name; changed in place.
        manifest: That of the rank.
        present: The numbers of all records, also of those that the tables do not hold.
    """
    raw = tables.get("step")
    if raw is None or not raw.num_rows:
        tables.pop("step", None)
        return
    step, slot, level = (_ints(raw, name) for name in ("step", "slot_seq", "level"))
    detail = np.full(len(step), _CODES[StepDetail.FULL])
    summed = _summed_steps(tables)
    folded = np.isin(step, summed) | ~_kept_in_full(manifest, step)
    folded &= ~_is_whole(step, slot, present)
    until = summed.max(initial=-1)
    detail[folded] = np.where(
        step[folded] <= until, _CODES[StepDetail.SUMS], _CODES[StepDetail.STAGES]
    )
    stages, steps = (LEVEL_CODES[name] for name in (CaptureLevel.STAGES, CaptureLevel.STEPS))
    detail[level == stages] = _CODES[StepDetail.STAGES]
    detail[level == steps] = _CODES[StepDetail.STEPS]
    detail[(level == NO_WORD) & ~folded] = UNKNOWN_DETAIL
    tables["step"] = raw.append_column(DETAIL_COLUMN, pa.array(detail, pa.int64()))


def _ints(raw: pa.Table, name: str) -> Ints:
    return np.asarray(raw[name].to_numpy(), dtype=np.int64)


def _summed_steps(tables: Mapping[str, pa.Table]) -> Ints:
    sums = tables.get(COMMUNICATION_SUM_RECORD.name)
    return np.zeros(0, np.int64) if sums is None else np.unique(_ints(sums, "step"))


def full_records_of(manifest: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """Return how many first steps a writer meant to keep record by record, and later ones each how many.

    None where it did not say; 0 for none of the one or the other.
    """
    annotations = (manifest or {}).get("annotations")
    said = annotations.get("full_records") if isinstance(annotations, dict) else None
    if not isinstance(said, dict):
        return None
    first, every = (said.get(name) for name in ("first_steps", "every_steps"))
    return first if type(first) is int else 0, every if type(every) is int and every > 0 else 0


def _kept_in_full(manifest: Mapping[str, Any] | None, step: Ints) -> Mask:
    """Return which steps the writer meant to keep record by record."""
    rule = full_records_of(manifest)
    if rule is None:
        return np.ones(len(step), dtype=bool)
    first, every = rule
    kept = step < first
    return np.asarray(kept | (step % every == 0) if every else kept)


def _is_whole(step: Ints, slot: Ints, present: NumbersPresent) -> Mask:
    """Tell of which steps every record is there, from the step before to the step after.

    The end of an operation may be reported in the step after its own.
    """
    before = np.concatenate([[FIRST_SEQ - 1], slot[:-1]])
    begins = np.concatenate([[True], step[1:] == step[:-1] + 1])
    begins[0] = step[0] == 0
    after = np.append(slot[1:], present.last)
    held = present.up_to(after) - present.up_to(before)
    return np.asarray(begins & (held == after - before))
