"""Reads the parts of all ranks of a run: whole, or as much of them as there is room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..schema.deep_trace import FOLDER, TraceName, sealed_name
from ..schema.errors import RunDirectoryError
from ..schema.manifest import MANIFEST_NAME, part_directories, read_json
from ..schema.note import Note, note
from ..schema.segment import segment_paths
from .attempts import steps_before
from .chosen_steps import Lengths, PartRead, read_part
from .held_steps import HeldSteps, held_steps, rows_of
from .rank_records import RankRecords, read_rank
from .sampled_steps import NOTHING, StepSelection, kept_rows, thin, with_room
from .step_numbers import attached_while_running
from .wanted import MOST_ROWS_VARIABLE, Wanted

_LEEWAY = 1.1
"""Times that a rank may have more than the one that it was chosen by."""
_MOST_TRACED = 1000
Directories = Mapping[int, Mapping[int, Path]]
"""The directories of the parts of each rank, by the number of the part."""


class PartsRead(NamedTuple):
    """What was read of a run.

    Attributes:
        parts: The parts of each rank, oldest first.
        is_whole: Whether that is all there is.
        limits: What was left out.
    """

    parts: dict[int, list[RankRecords]]
    is_whole: bool
    limits: tuple[Note, ...]


def read_parts(directories: Directories, wanted: Wanted) -> PartsRead:
    """Read all ranks, of a run without room only some steps.

    Raises:
        FormatVersionError: A rank was written by another format version.
    """
    sizes = {
        rank: [segment_bytes(path) for path in own.values()] for rank, own in directories.items()
    }
    choice = _Choice(directories, wanted)
    parts: dict[int, list[RankRecords]] = {}
    held = kept = 0
    # By the rank with most on disk it is chosen what has room, and anew by others where that one
    # holds less than it seemed, as after a damage.
    for rank in sorted(directories, key=lambda rank: -sum(sizes[rank])):
        read = [
            read_part(path, rank, size, wanted.most_rows, wanted.sieves.get(path))
            for path, size in zip(directories[rank].values(), sizes[rank], strict=True)
        ]
        held += sum(part.all_rows for part in read)
        if not parts:
            choice.fit(rank, [part.held() for part in read])
        parts[rank] = own = choice.kept(rank, read)
        kept += _rows_of(own)
        if kept > wanted.most_rows and choice.fit(rank, list(map(held_steps, own))):
            for other, found in parts.items():
                choice.thin(other, found)
            kept = sum(map(_rows_of, parts.values()))
        wanted.on_bytes(sum(sizes[rank]))
    in_order = {rank: parts[rank] for rank in directories}
    return PartsRead(in_order, choice.is_whole, tuple(choice.limits(held, kept)))


def _rows_of(parts: Sequence[RankRecords]) -> int:
    return sum(map(rows_of, parts))


class _Choice:
    """How much is read of each part: ever less, as ranks turn out to be larger."""

    def __init__(self, directories: Directories, wanted: Wanted) -> None:
        self._directories = directories
        self._wanted = wanted
        self._selections = {rank: [StepSelection()] * len(own) for rank, own in directories.items()}
        self._one_in, self._memory_one_in = 0, 1
        self._largest = -1.0
        self._has_looked = self._is_apart = False

    @property
    def is_whole(self) -> bool:
        """Tell whether nothing is left out."""
        return all(selection.is_whole for own in self._selections.values() for selection in own)

    def kept(self, rank: int, parts: Sequence[PartRead]) -> list[RankRecords]:
        """Return what is chosen of the parts of a rank."""
        own = zip(parts, self._selections[rank], strict=True)
        return [part.kept(selection) for part, selection in own]

    def thin(self, rank: int, parts: Sequence[RankRecords]) -> None:
        """Leave out of the parts of a rank what is not chosen."""
        for part, selection in zip(parts, self._selections[rank], strict=True):
            thin(part, selection)

    def fit(self, rank: int, parts: Sequence[HeldSteps]) -> bool:
        """Choose so that there is room for as many ranks like one; return whether that is less."""
        if sum(held.all_rows for held in parts) <= _LEEWAY * self._largest:
            return False
        before = self._selections
        self._grow(rank, parts)
        if self._one_in and not self._has_looked:
            self._has_looked = True
            self._look_at_steps(rank, parts)
        own = zip(parts, self._selections[rank], strict=True)
        self._largest = sum(kept_rows(held, selection) for held, selection in own)
        return self._selections is not before

    def _grow(self, rank: int, parts: Sequence[HeldSteps]) -> None:
        own = list(zip(parts, self._selections[rank], strict=True))
        one_in, memory_one_in = with_room(own, len(self._directories), self._wanted.most_rows)
        if self._is_apart:
            one_in = min(one_in, 1)
        if one_in <= self._one_in and memory_one_in <= self._memory_one_in:
            return
        self._one_in = max(one_in, self._one_in)
        self._memory_one_in = max(memory_one_in, self._memory_one_in)
        self._selections = {
            rank: [
                replace(selection, one_in=self._one_in, memory_one_in=self._memory_one_in)
                for selection in own
            ]
            for rank, own in self._selections.items()
        }

    def _look_at_steps(self, rank: int, parts: Sequence[HeldSteps]) -> None:
        """Find what numbers of steps mean, the first time that a choice goes by them."""
        self._one_in, self._memory_one_in = 0, 1
        # Such ranks number their steps each by itself: no choice by numbers is the same on all.
        self._is_apart = any(map(attached_while_running, _manifests(self._directories)))
        first, last = self._wanted.steps or (0, 0)
        befores = None
        if self._wanted.steps is not None and not self._is_apart:
            befores = _steps_before(self._directories)
        self._selections = {
            rank: [
                replace(
                    StepSelection()
                    if befores is None
                    else _moved(first, last, befores[rank][place]),
                    has_tail=place == len(own) - 1,
                    always=_traced_steps(directory),
                )
                for place, directory in enumerate(own.values())
            ]
            for rank, own in self._directories.items()
        }
        self._grow(rank, parts)

    def limits(self, held: int, kept: int) -> Iterator[Note]:
        """Yield what was left out.

        Args:
            held: Rows that there are.
            kept: Those that were read.
        """
        if self._one_in:
            choice = note("room.spread")
            if self._is_apart:
                choice = note("room.apart")
            elif self._wanted.steps is not None:
                choice = note("room.spread_over_wanted")
            yield note(
                "missing.no_room",
                rows=held,
                read=kept,
                most=self._wanted.most_rows,
                variable=MOST_ROWS_VARIABLE,
                choice=choice,
            )
        if self._memory_one_in > 1:
            yield note("missing.no_room_for_memory", one_in=self._memory_one_in)


def bytes_of_run(path: Path) -> int:
    """Return how much the ranks of a run have in segments."""
    return sum(
        segment_bytes(one) for own in part_directories(path).values() for one in own.values()
    )


def segment_bytes(directory: Path) -> int:
    """Return how much a part of a rank has in segments; 0 where they cannot be listed."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in segment_paths(directory).values())
    return 0


def _moved(first: int, last: int, before: int | None) -> StepSelection:
    return NOTHING if before is None else StepSelection(first - before, last - before)


def _steps_before(directories: Directories) -> dict[int, list[int | None]]:
    """Return how many steps of the job lie before each part."""
    if all(len(own) == 1 for own in directories.values()):
        return {rank: [0] for rank in directories}
    lengths = {}
    for rank in directories:
        lengths[rank] = [read_rank(path, rank, Lengths()) for path in directories[rank].values()]
    return steps_before(lengths)


def _manifests(directories: Directories) -> Iterator[RankRecords]:
    for rank, own in directories.items():
        for directory in own.values():
            with suppress(RunDirectoryError):
                yield RankRecords(rank, manifest=read_json(directory / MANIFEST_NAME))


def _traced_steps(directory: Path) -> tuple[int, ...]:
    """Return the steps that a part was traced in depth in: kernels are known from their passes."""
    with suppress(OSError):
        named = map(sealed_name, (directory / FOLDER).iterdir())
        found = [name for name in named if name is not None]
        steps = {step for name in found[:_MOST_TRACED] for step in _steps_of(name)}
        return tuple(sorted(steps))
    return ()


def _steps_of(name: TraceName) -> range:
    return range(name.first_step, min(name.last_step, name.first_step + _MOST_TRACED) + 1)
