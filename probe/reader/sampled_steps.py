"""How much is read of a run that is too large to be read whole.

A job of 256 ranks has half a billion records after 10,000 steps, and an analysis of all of them
takes 700 bytes for each. An account is made of the steps with all their records only, and a spread
selection of those tells as much. So of a large run records are left out in this order, until what
is left has room:

1. of steps of which fewer records were kept than of others: passes, and sums of communication;
2. of the others, where the number of the step is no multiple of 2, then of 4, of 20, of 100, of 200 …, if
   each hundredth step was kept record by record. So where they lie close, as the first steps of a run
   do, they are thinned out before those that lie apart.

The number of a step decides, so that all ranks keep the same ones. The length of every step stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schema.records import COMPLETION_RECORD, DEVICE_TIME_RECORD, MEMORY_VALUES
from ..schema.terms import StepDetail
from .held_steps import MEMORY, HeldSteps
from .rank_records import RankRecords
from .step_detail import DETAIL_COLUMN, UNKNOWN_DETAIL
from .wanted import COUNTED

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

TAIL_STEPS = 2
"""Last steps of a rank that stay: where a run broke off is known from them."""
_FEWEST_STEPS = 4
"""So many are kept of each rank, however large they are."""
_MOST_EVERY = 1 << 20
_OPERATIONS = ("collective", "p2p")
BY_EVENT = (COMPLETION_RECORD.name, DEVICE_TIME_RECORD.name)
_NO_STEP = 1 << 62
_ANY = -1
_LENGTH_ONLY = list(StepDetail).index(StepDetail.STEPS)
_FULL = list(StepDetail).index(StepDetail.FULL)


@dataclass(frozen=True, slots=True)
class StepSelection:
    """The steps of a part of a rank whose records are read.

    Attributes:
        first: The first step.
        last: The last step.
        one_in: Of the steps of which most was kept, those whose number is a multiple of it; 0 for
            all steps, whatever was kept of them.
        memory_one_in: The same for samples of memory, of which the highest stay.
        has_tail: Whether the last steps stay too.
        always: Steps that stay in any case.
    """

    first: int = _ANY
    last: int = _NO_STEP
    one_in: int = 0
    memory_one_in: int = 1
    has_tail: bool = True
    always: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Tell whether nothing is left out."""
        return not self.is_some and self.one_in == 0 and self.memory_one_in == 1

    @property
    def is_some(self) -> bool:
        """Tell whether some steps were asked for."""
        return self.first > _ANY or self.last < _NO_STEP

    def keeps(self, step: Ints, detail: Ints) -> Mask:
        """Tell which steps of a rank, in the order of recording, keep their records.

        Args:
            step: Their numbers.
            detail: What is held of each, as a position in StepDetail.
        """
        wanted = _is_wanted(step, self)
        kept = self.chooses(step, detail)
        if self.one_in and self.has_tail:
            kept[-TAIL_STEPS:] = wanted[-TAIL_STEPS:]
        return np.asarray(kept | (wanted & np.isin(step, self.always)))

    def chooses(self, step: Ints, detail: Ints) -> Mask:
        """Tell the same of those steps of which an account is made."""
        wanted = _is_wanted(step, self)
        if not self.one_in or not wanted.any():
            return np.asarray(wanted)
        held = np.where(detail == UNKNOWN_DETAIL, _FULL, detail)
        # The first step of a part is no sample: it holds one-time work.
        is_sample = (step % self.one_in == 0) & ((step > 0) | (self.one_in == 1))
        return np.asarray(wanted & (held == held[wanted].max()) & is_sample)


NOTHING = StepSelection(first=_NO_STEP)
"""The length of steps alone."""


def thin(part: RankRecords, selection: StepSelection) -> None:
    """Leave out in place what is not of a selection.

    What belongs to no finished step stays: it tells where a rank stands still.
    """
    steps = part.tables.get("step")
    if selection.is_whole or steps is None:
        return
    step, detail = _ints(steps, "step"), _ints(steps, DETAIL_COLUMN)
    kept = selection.keeps(step, detail)
    gone = np.sort(step[~kept])
    reaching = _reaching(part, np.sort(step[kept]))
    slots = [np.zeros(0, np.int64)]
    for name in COUNTED:
        if (table := part.tables.get(name)) is not None:
            out = _is_in(_ints(table, "step"), gone)
            if name in _OPERATIONS:
                out &= ~_is_in(_ints(table, "slot_seq"), reaching)
            slots.append(_ints(table, "slot_seq")[out])
            part.tables[name] = table.filter(pa.array(~out))
    events = np.sort(np.concatenate(slots))
    for name in BY_EVENT:
        if (table := part.tables.get(name)) is not None:
            part.tables[name] = table.filter(pa.array(~_is_in(_ints(table, "event_id"), events)))
    if (table := part.tables.get(MEMORY)) is not None:
        part.tables[MEMORY] = table.filter(pa.array(kept_samples(table, selection)))
    at = steps.column_names.index(DETAIL_COLUMN)
    details = pa.array(np.where(kept, detail, _LENGTH_ONLY), pa.int64())
    part.tables["step"] = steps.set_column(at, DETAIL_COLUMN, details)
    part.tables = {name: table for name, table in part.tables.items() if table.num_rows}


def _reaching(part: RankRecords, kept: Ints) -> Ints:
    """Return the events that were waited for in a step that stays, and issued in the one before."""
    completions = part.tables.get(COMPLETION_RECORD.name)
    found = [np.zeros(0, np.int64)]
    if completions is None:
        return found[0]
    steps = part.tables["step"]
    number, end_ns = _ints(steps, "step"), _ints(steps, "start_ns") + _ints(steps, "dur_ns")
    order = np.argsort(number, kind="stable")
    number, end_ns = number[order], end_ns[order]
    by_event = np.argsort(_ints(completions, "wait_end_ns"), kind="stable")
    event = _ints(completions, "event_id")[by_event]
    until_ns = _ints(completions, "wait_end_ns")[by_event]
    # Of several completions of an event the one with the latest end counts.
    event, last = np.unique(event[::-1], return_index=True)
    until_ns = until_ns[::-1][last]
    for name in _OPERATIONS:
        if (table := part.tables.get(name)) is not None and len(event) and len(number):
            slot, step = _ints(table, "slot_seq"), _ints(table, "step")
            near = np.flatnonzero(
                _is_in(step + 1, kept) & _is_in(slot, event) & _is_in(step, number)
            )
            over = until_ns[np.searchsorted(event, slot[near])]
            found.append(slot[near][over > end_ns[np.searchsorted(number, step[near])]])
    return np.sort(np.concatenate(found))


def kept_samples(table: pa.Table, selection: StepSelection) -> Mask:
    """Tell which samples of memory stay: of some steps, and the highest of all that are wanted.

    Of what stays of some of them, what stays of all can be found.
    """
    step = _ints(table, "step")
    wanted = np.flatnonzero(_is_wanted(step, selection))
    kept = np.zeros(len(step), dtype=bool)
    kept[wanted[step[wanted] % selection.memory_one_in == 0]] = True
    if len(wanted):
        highest = [int(wanted[np.argmax(_ints(table, name)[wanted])]) for name in MEMORY_VALUES]
        kept[highest] = True
    return kept


def with_room(
    wanted: Sequence[tuple[HeldSteps, StepSelection]], ranks: int, most_rows: int
) -> tuple[int, int]:
    """Return of how many steps one has room, where each rank has about as many records as one has.

    Args:
        wanted: What the parts of a rank hold, and what is wanted of each.
        ranks: How many ranks there are.
        most_rows: Rows of passes and communication that have room, of all ranks.

    Returns:
        ``one_in`` and ``memory_one_in`` of a selection.
    """
    choices = _choices(max((held.full_every for held, _ in wanted), default=1))
    one_in = 0
    while _rows(wanted, one_in)[0] * ranks > most_rows:
        more = next(choices)
        if more > 1 and (_rows(wanted, more)[1] < _FEWEST_STEPS or more > _MOST_EVERY):
            break
        one_in = more
    samples = sum(
        int(held.samples[_is_wanted(held.sampled_step, selection)].sum())
        for held, selection in wanted
    )
    memory_one_in = 1
    while samples * ranks > most_rows * memory_one_in:
        memory_one_in *= 2
    return one_in, memory_one_in


def kept_rows(held: HeldSteps, selection: StepSelection) -> int:
    """Return how many records that need room are kept of a part."""
    if selection.is_whole:
        return held.all_rows
    unfinished = held.all_rows - int(held.rows.sum())
    return int(held.rows[selection.keeps(held.step, held.detail)].sum()) + unfinished


def _choices(every: int) -> Iterator[int]:
    """Give ever larger numbers, each a multiple of the one before, up to one and its doubles.

    Ranks that were thinned out by one of them have the steps of each later one.
    """
    number = 1
    yield number
    left = min(max(every, 1), _MOST_EVERY)
    divisor = 2
    while left > 1:
        if left % divisor == 0:
            left //= divisor
            number *= divisor
            yield number
        else:
            divisor += 1
    while True:
        number *= 2
        yield number


def _rows(wanted: Sequence[tuple[HeldSteps, StepSelection]], one_in: int) -> tuple[int, int]:
    """Return how many rows are kept, and of how many steps an account is made."""
    rows = steps = 0
    for held, selection in wanted:
        chosen = replace(selection, one_in=one_in)
        rows += int(held.rows[chosen.keeps(held.step, held.detail)].sum())
        steps += int(chosen.chooses(held.step, held.detail).sum())
    return rows, steps


def _is_wanted(step: Ints, selection: StepSelection) -> Mask:
    return np.asarray((step >= selection.first) & (step <= selection.last))


def _is_in(values: Ints, ordered: Ints) -> Mask:
    """Tell which values are among others in order."""
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[place] == values)


def _ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)
