"""What one look at each row of the summaries keeps: a few bytes of each, from which it follows where to look closer.

The rows are read a file at a time. What is kept of a rank and step is its own work and what it waited for its
replicas: 8 bytes, where the tests on slow ranks take hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.terms import Axis

from ..align.steps.microbatch_work import FEATURES
from ..tables.arrays import BoolArray, FloatArray, IntArray
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
    looking = Looking(every)
    for part in summaries.parts(SURVEYED):
        looking.add(part)
    return looking.survey(str(summaries.run))


def tells_work(summaries: Summaries) -> bool:
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
    _parts: list[_Part] = field(default_factory=list)
    _wanted: IntArray | None = None

    def add(self, part: pa.Table) -> None:
        """Look at the rows of some ranks, each rank's in one part."""
        if not part.num_rows:
            return
        grid = _Grid(part["rank"].to_numpy(), part["step"].to_numpy(), self._wanted)
        if self.every > 1 and self._wanted is None:
            self._wanted = grid.steps[:: self.every]
            grid = _Grid(part["rank"].to_numpy(), part["step"].to_numpy(), self._wanted)
        own = np.zeros(part.num_rows, dtype=np.float32)
        for name in OWN_WORK:
            own += part[name].to_numpy().astype(np.float32)
        wall = grid.laid_out(part["wall_s"].to_numpy())
        kept = [
            grid.laid_out(values).astype(np.float32) for values in (own, part[ALONG_DP].to_numpy())
        ]
        self._parts.append(_Part(grid.ranks, grid.steps, wall.max(axis=0), wall.sum(axis=0), kept))

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
                "no step was finished by all ranks",
                where=where,
                remedy="Look at how it ended: meshscope diagnose RUN",
            )
        ranks = np.concatenate([part.ranks for part in parts])
        at = [part.held(steps) for part in parts]
        total = sum(part.total_s[held] for part, held in zip(parts, at, strict=True))
        longest = [part.longest_s[held] for part, held in zip(parts, at, strict=True)]
        order = np.argsort(ranks, kind="stable")
        kept = []
        for _ in range(2):
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

    def __init__(self, rank: IntArray, step: IntArray, wanted: IntArray | None) -> None:
        """Take the rows by rank and step; only some steps, if any are wanted."""
        first = np.flatnonzero(np.diff(rank, prepend=-1))
        self.ranks: IntArray = rank[first].astype(np.int64)
        self.steps: IntArray = step[: len(step) // len(first)].astype(np.int64)
        self._rows: IntArray | None = None
        if wanted is None and len(step) == len(first) * len(self.steps):
            laid = step.reshape(len(first), -1)
            if (laid == laid[0]).all() and (np.diff(first) == len(self.steps)).all():
                return
        numbers, at, count = np.unique(step, return_inverse=True, return_counts=True)
        held: BoolArray = count == len(first)
        if wanted is not None:
            held &= np.isin(numbers, wanted)
        rows = np.flatnonzero(held[at])
        self.steps = numbers[held]
        self._rows = rows[np.lexsort((step[rows], rank[rows]))]

    def laid_out(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return values by row as an array [rank, step]."""
        kept = values if self._rows is None else values[self._rows]
        return kept.reshape(len(self.ranks), len(self.steps))
