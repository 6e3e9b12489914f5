"""Reads the parts of all ranks of a run: whole, or as much of them as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .attempts import steps_before
from .errors import RunDirectoryError
from .manifest import MANIFEST_NAME, part_directories, read_json
from .portion import MOST_ROWS, NOTHING, Portion, rows_of, thin, with_room
from .rank_records import RankRecords, read_rank
from .segment import segment_paths
from .step_numbers import attached_while_running

MOST_ROWS_VARIABLE = "MESHSCOPE_MOST_ROWS"
Directories = Mapping[int, Mapping[int, Path]]
"""The directories of the parts of each rank, by the number of the part."""


class Wanted(NamedTuple):
    """What a reader asks for.

    Attributes:
        steps: First and last step, as they are numbered in the run; None for all. The records of
            others are left out only where not all have room.
        most_rows: Rows of passes and communication that have room, of all ranks together.
        on_bytes: Is told how many more bytes were read.
    """

    steps: tuple[int, int] | None = None
    most_rows: int = MOST_ROWS
    on_bytes: Callable[[int], None] = lambda _: None


WANTED = Wanted()
"""As much as there is room for."""


class PartsRead(NamedTuple):
    """What was read of a run.

    Attributes:
        parts: The parts of each rank, oldest first.
        is_whole: Whether that is all there is.
        limits: What was left out.
    """

    parts: dict[int, list[RankRecords]]
    is_whole: bool
    limits: tuple[str, ...]


def read_parts(directories: Directories, wanted: Wanted) -> PartsRead:
    """Read all ranks, of a run without room some steps only.

    Raises:
        FormatVersionError: A rank was written by another format version.
    """
    if not directories:
        return PartsRead({}, is_whole=True, limits=())
    sizes = {rank: sum(map(segment_bytes, own.values())) for rank, own in directories.items()}
    largest = max(sizes, key=sizes.__getitem__)
    sample = _read(directories, largest)
    portions = _portions(directories, (largest, sample), wanted)
    parts, held = {}, 0
    for rank in directories:
        parts[rank] = sample if rank == largest else _read(directories, rank)
        held += sum(map(rows_of, parts[rank]))
        for part, portion in zip(parts[rank], portions[rank], strict=True):
            thin(part, portion)
        wanted.on_bytes(sizes[rank])
    chosen = [portion for own in portions.values() for portion in own]
    limits: tuple[str, ...] = ()
    if any(portion.one_in for portion in chosen):
        kept = sum(rows_of(part) for own in parts.values() for part in own)
        limits = (_left_out(held, kept, wanted),)
    return PartsRead(parts, all(portion.is_whole for portion in chosen), limits)


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


def _read(directories: Directories, rank: int) -> list[RankRecords]:
    return [read_rank(directory, rank) for directory in directories[rank].values()]


def _portions(
    directories: Directories, largest: tuple[int, list[RankRecords]], wanted: Wanted
) -> dict[int, list[Portion]]:
    """Return what is read of each part of each rank.

    Args:
        directories: Where they are.
        largest: The rank with most on disk, and its parts.
        wanted: What is asked for.
    """
    rank, sample = largest
    portions = {rank: [Portion()] * len(own) for rank, own in directories.items()}

    def room() -> tuple[int, int]:
        own = list(zip(sample, portions[rank], strict=True))
        return with_room(own, len(directories), wanted.most_rows)

    one_in, memory_one_in = room()
    if one_in and any(map(attached_while_running, _manifests(directories))):
        # Such ranks number their steps each by itself: no choice by numbers is the same on all.
        one_in = 1
    elif one_in and wanted.steps is not None:
        first, last = wanted.steps
        portions = {
            rank: [_moved(first, last, before) for before in own]
            for rank, own in _steps_before(directories).items()
        }
        one_in, memory_one_in = room()
    return {
        rank: [replace(one, one_in=one_in, memory_one_in=memory_one_in) for one in own]
        for rank, own in portions.items()
    }


def _moved(first: int, last: int, before: int | None) -> Portion:
    return NOTHING if before is None else Portion(first - before, last - before)


def _steps_before(directories: Directories) -> dict[int, list[int | None]]:
    """Return how many steps of the job lie before each part."""
    if all(len(own) == 1 for own in directories.values()):
        return {rank: [0] for rank in directories}
    lengths = {}
    for rank in directories:
        lengths[rank] = _read(directories, rank)
        for part in lengths[rank]:
            thin(part, NOTHING)
    return steps_before(lengths)


def _manifests(directories: Directories) -> Iterator[RankRecords]:
    for rank, own in directories.items():
        for directory in own.values():
            with suppress(RunDirectoryError):
                yield RankRecords(rank, manifest=read_json(directory / MANIFEST_NAME))


def _left_out(held: int, kept: int, wanted: Wanted) -> str:
    where = "it; --steps FIRST:LAST reads more of a part"
    if wanted.steps is not None:
        where = "what was asked for"
    return (
        f"the run has {held / 1e6:.3g} million records of passes and communication, and "
        f"{MOST_ROWS_VARIABLE} gives room to {wanted.most_rows / 1e6:.3g} million: {kept / 1e6:.3g} million "
        f"were read, of steps spread over {where}. Of the others it is the length alone"
    )
