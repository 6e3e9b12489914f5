"""What one look at each row of the summaries keeps: a few bytes of each, from which it follows where to look closer.

The rows are read a file at a time. What is kept of a rank and step is its own work and what it waited for its
replicas: 8 bytes, where the tests on slow ranks take hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.terms import Axis

from ..align.steps.microbatch_work import FEATURES
from ..tables.arrays import BoolArray, FloatArray, IntArray
from ..wording.message import message
from .rows import Rows, joined
from .store import Summaries
from .summary import OWN_WORK

SurveyArray = npt.NDArray[np.float32]
ALONG_DP = f"exposed_{Axis.DP.value}_s"
"""What replicas wait for each other, and these transfers."""
SURVEYED = ("rank", "step", "wall_s", *OWN_WORK, ALONG_DP)
"""Columns of each row that are looked at."""
SURVEY_ROW_BYTES = 20
"""What a row takes while it is kept, at most."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The steps that all ranks finished."""

    ranks: IntArray
    steps: IntArray
    longest_s: FloatArray
    """Longest length of each step of any rank."""
    mean_s: FloatArray
    """Mean length of each step over the ranks."""
    own_s: SurveyArray
    """Own work in passes [rank, step]."""
    waits_s: SurveyArray
    """What each rank waited for its replicas [rank, step], transfers included."""
    every: int = 1
    """One of every so many steps was looked at."""

    def thinned(self, every: int) -> Survey:
        """Return one of every so many of these steps."""
        if every == 1:
            return self
        held = slice(None, None, every)
        return Survey(
            ranks=self.ranks,
            steps=self.steps[held],
            longest_s=self.longest_s[held],
            mean_s=self.mean_s[held],
            own_s=self.own_s[:, held],
            waits_s=self.waits_s[:, held],
            every=self.every * every,
        )


def survey_of(summaries: Summaries, every: int = 1) -> Survey:
    """Return what one look at each row keeps.

    Args:
        summaries: The summaries of a run.
        every: Only one of every so many steps.

    Raises:
        TraceFormatError: No step was finished by all ranks.
        RunDirectoryError: A file of the summaries cannot be read.
    """
    looking = Looking(every, len(summaries.ranks))
    for part in joined(summaries.parts(SURVEYED, zeros=False)):
        looking.add(Rows(part))
    return looking.survey(str(summaries.run))


def knows_work(summaries: Summaries) -> bool:
    """Return whether some rank recorded the work of a step.

    Raises:
        RunDirectoryError: The first file of the summaries cannot be read.
    """
    first = next(iter(summaries.parts(FEATURES)), None)
    return first is not None and any(first[name].null_count < first.num_rows for name in FEATURES)


@dataclass(slots=True)
class _Part:
    """Some ranks in the steps that all of them finished."""

    ranks: IntArray
    steps: IntArray
    longest_s: FloatArray
    total_s: FloatArray
    kept: list[SurveyArray]
    """Own work and waits [rank, step]."""

    def held(self, steps: IntArray) -> slice | IntArray:
        """Return where some of its steps are."""
        whole = len(steps) == len(self.steps)
        return slice(None) if whole else np.searchsorted(self.steps, steps)


@dataclass(slots=True)
class Looking:
    """Parts of the rows, one after the other."""

    every: int = 1
    """Only one of every so many steps of the first part is looked at, whatever their numbers."""
    most_ranks: int = 0
    """Ranks of the run, where known: their steps get room once, instead of one after the other."""
    _parts: list[_Part] = field(default_factory=list)
    _room: list[SurveyArray] = field(default_factory=list)
    _used: int = 0
    """Ranks in the room; -1 as soon as one has other steps than the first."""
    _wanted: IntArray | None = None

    def add(self, rows: Rows) -> None:
        """Look at the rows of some ranks."""
        if not len(rows):
            return
        grid = _Grid(rows, self._wanted)
        if self.every > 1 and self._wanted is None:
            self._wanted = grid.steps[:: self.every]
            grid = _Grid(rows, self._wanted)
        wall = grid.laid_out(rows.column("wall_s"))
        own, waits = rows.total(OWN_WORK, np.float32), rows.column(ALONG_DP)
        kept = self._in_room(grid.steps, [grid.laid_out(values) for values in (own, waits)])
        self._parts.append(_Part(rows.ranks, grid.steps, wall.max(axis=0), wall.sum(axis=0), kept))

    def _in_room(self, steps: IntArray, kept: list[npt.NDArray[np.number]]) -> list[SurveyArray]:
        """Return the values in their place after those of earlier ranks, else on their own."""
        if not self._parts:
            size = self.most_ranks, len(steps)
            self._room = [np.empty(size, dtype=np.float32) for _ in kept]
        ranks = slice(self._used, self._used + len(kept[0]))
        same = self._used >= 0 and (not self._parts or np.array_equal(steps, self._parts[0].steps))
        if not same or ranks.stop > self.most_ranks:
            self._used = -1
            return [values.astype(np.float32) for values in kept]
        self._used = ranks.stop
        for room, values in zip(self._room, kept, strict=True):
            room[ranks] = values
        return [room[ranks] for room in self._room]

    def survey(self, where: str) -> Survey:
        """Return what was kept; nothing can be added then.

        Raises:
            TraceFormatError: No step was finished by all ranks.
        """
        parts, self._parts = self._parts, []
        steps = parts[0].steps if parts else np.zeros(0, dtype=np.int64)
        for part in parts[1:]:
            steps = np.intersect1d(steps, part.steps, assume_unique=True)
        if not len(steps):
            raise TraceFormatError(
                message("refused.no_step_of_all_ranks"),
                where=where,
                remedy=message("advice.how_it_ended"),
            )
        ranks = np.concatenate([part.ranks for part in parts])
        at = [part.held(steps) for part in parts]
        total = sum(part.total_s[held] for part, held in zip(parts, at, strict=True))
        longest = [part.longest_s[held] for part, held in zip(parts, at, strict=True)]
        order = np.argsort(ranks, kind="stable")
        kept, room, self._room = [], self._room, []
        for _ in range(2):
            if self._used == len(ranks):
                found = room.pop(0)[: self._used]
            else:
                found = np.concatenate(
                    [part.kept.pop(0)[:, held] for part, held in zip(parts, at, strict=True)]
                )
            kept.append(found if (np.diff(order) == 1).all() else found[order])
        own, waits = kept
        return Survey(
            ranks=ranks[order],
            steps=steps,
            longest_s=np.max(longest, axis=0),
            mean_s=np.asarray(total) / len(ranks),
            own_s=own,
            waits_s=waits,
            every=self.every,
        )


class _Grid:
    """Where rows of some ranks go in an array [rank, step] of the steps that all of them have."""

    def __init__(self, rows: Rows, wanted: IntArray | None) -> None:
        """Take the rows by rank and step; only some steps, if any are wanted."""
        self.steps = rows.steps
        self._ranks = len(rows.ranks)
        self._rows: IntArray | None = None
        if wanted is None and rows.is_regular:
            return
        numbers, at, count = np.unique(rows.step, return_inverse=True, return_counts=True)
        held: BoolArray = count == len(rows.ranks)
        if wanted is not None:
            held &= np.isin(numbers, wanted)
        found = np.flatnonzero(held[at])
        self.steps = numbers[held]
        self._rows = found[np.lexsort((rows.step[found], rows.rank[found]))]

    def laid_out(self, values: npt.NDArray[np.number]) -> npt.NDArray[np.number]:
        """Return values by row as an array [rank, step]."""
        kept = values if self._rows is None else values[self._rows]
        return kept.reshape(self._ranks, len(self.steps))
