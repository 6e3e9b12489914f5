"""Tables of many ranks as segments: one Parquet file for 256 ranks, all listed in one file.

``<table>/ranks=00000-00255.parquet`` holds the rows of these ranks, by rank. A row group ends where
a rank does, so that one rank is read without the others. ``segments.json`` beside the tables lists
the segments with their ranks, rows and steps: nothing has to be listed or opened to find a rank. Tables that it
names are in the segments alone, whatever else lies in their folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.manifest import read_json, write_json

from ..wording.limits import Limit, keep_limits, kept_limits
from ..wording.message import message
from .stored_tables import STORED, write_table

SEGMENTS_NAME = "segments.json"
SEGMENT_RANKS = 256
ROW_GROUP_ROWS = 16_384
"""A row group has at least so many rows, if its segment has: each costs 2 KB of footer to open."""
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """One file, as the list has it."""

    name: str
    first_rank: int
    last_rank: int
    """Ranks that it may hold rows of, both included."""
    rows: int
    first_step: int | None
    last_step: int | None
    """Least and greatest step of its rows; None where they have none."""
    rank_rows: Mapping[int, int]
    """Rows of each rank that has some."""


class SegmentList(msgspec.Struct, frozen=True, kw_only=True):
    """What ``segments.json`` says."""

    tables: Mapping[str, tuple[SegmentFile, ...]]
    """The segments of each table that is in segments, by rank."""
    limits: tuple[Limit, ...] = ()
    """What was left out when the segments were made."""
    generation: int = 0
    """How often all segments were made anew: under new names, beside those that readers read."""


def segment_name(first_rank: int, last_rank: int, generation: int = 0) -> str:
    """Return the name of the file of some ranks."""
    made_anew = f".{generation}" if generation else ""
    return f"ranks={first_rank:05d}-{last_rank:05d}{made_anew}.parquet"


def in_segments(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of each segment; the same ranks are together in every table and run."""
    by_number: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        by_number.setdefault(rank // SEGMENT_RANKS, []).append(rank)
    yield from map(tuple, by_number.values())


def bounds_of(rank: int) -> tuple[int, int]:
    """Return the first and the last rank that are in one segment with a rank."""
    first = rank // SEGMENT_RANKS * SEGMENT_RANKS
    return first, first + SEGMENT_RANKS - 1


def write_segment_file(
    folder: Path,
    table: str,
    ranks: Sequence[int],
    parts: Iterable[pa.Table],
    generation: int = 0,
) -> SegmentFile | None:
    """Write one segment of a table; None, and no file, where it has no rows.

    Args:
        folder: The folder of the table.
        table: Its name.
        ranks: Ranks of the segment.
        parts: Rows of one or several ranks each, by rank; one is in memory at a time.
        generation: As in ``SegmentList``.

    Raises:
        OSError: It cannot be written.
    """
    bounds = bounds_of(ranks[0])
    seen = _Seen()
    at_least = 1 if table in STORED else ROW_GROUP_ROWS
    place = folder / segment_name(*bounds, generation)
    write_table(place, table, seen.watched(_row_groups(parts, at_least)))
    if not seen.rows:
        place.unlink()
        return None
    steps = seen.steps or (None, None)
    return SegmentFile(
        name=place.name,
        first_rank=bounds[0],
        last_rank=bounds[1],
        rows=sum(seen.rows.values()),
        first_step=steps[0],
        last_step=steps[1],
        rank_rows=seen.rows,
    )


def write_held_segments(folder: Path, name: str, table: pa.Table) -> tuple[SegmentFile, ...]:
    """Write a table in memory as segments; rows of a rank keep their order.

    Raises:
        OSError: It cannot be written.
    """
    table = by_rank(table)
    rank, found = table["rank"].to_numpy(), []
    for ranks in in_segments(np.unique(rank).tolist()):
        first, last = np.searchsorted(rank, [ranks[0], ranks[-1] + 1]).tolist()
        found.append(write_segment_file(folder, name, ranks, [table.slice(first, last - first)]))
    return tuple(one for one in found if one is not None)


def by_rank(table: pa.Table) -> pa.Table:
    """Return the rows by rank; those of a rank keep their order."""
    rank = table["rank"].to_numpy()
    if (np.diff(rank) >= 0).all():
        return table
    return table.take(pa.array(np.argsort(rank, kind="stable")))


def write_list(folder: Path, listed: SegmentList) -> None:
    """Write the list; from then on the segments are what a reader reads.

    Raises:
        OSError: It cannot be written.
    """
    tables = {
        name: [asdict(one) | {"rank_rows": list(_runs(one.rank_rows))} for one in files]
        for name, files in listed.tables.items()
    }
    content = {
        "version": _VERSION,
        **keep_limits(listed.limits),
        "generation": listed.generation,
        "tables": tables,
    }
    write_json(folder / SEGMENTS_NAME, content)


def read_list(folder: Path) -> SegmentList:
    """Return what a folder of tables has in segments; nothing where it has no list.

    Raises:
        RunDirectoryError: The list cannot be used.
    """
    place = folder / SEGMENTS_NAME
    if not place.exists():
        return SegmentList(tables={})
    content = read_json(place)
    try:
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']!r} is not {_VERSION}")
        generation = int(content["generation"])
        tables = {
            str(name): tuple(_segment_file(file, generation) for file in files)
            for name, files in content["tables"].items()
        }
        return SegmentList(tables=tables, limits=kept_limits(content), generation=generation)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunDirectoryError(
            message("refused.list_of_segments", kind=type(error).__name__, error=error),
            where=str(place),
            remedy=message("advice.ingest_source_again"),
        ) from error


def _segment_file(value: Mapping[str, Any], generation: int) -> SegmentFile:
    name = str(value["name"])
    if name != segment_name(value["first_rank"], value["last_rank"], generation):
        raise ValueError(f"{name!r} is no segment of its ranks")
    rows = {
        rank: int(n)
        for first, last, n in value["rank_rows"]
        for rank in range(max(first, value["first_rank"]), min(last, value["last_rank"]) + 1)
    }
    return SegmentFile(**{**value, "rank_rows": rows})


def _runs(rank_rows: Mapping[int, int]) -> Iterator[list[int]]:
    """Yield first rank, last rank and rows of each of neighbours that have as many: [[0, 255, 17]]."""
    ranks, rows = (
        np.array(sorted(rank_rows)),
        np.array([rank_rows[one] for one in sorted(rank_rows)]),
    )
    ends = np.flatnonzero((np.diff(ranks) != 1) | (np.diff(rows) != 0)).tolist()
    for first, last in zip([0, *(end + 1 for end in ends)], [*ends, len(ranks) - 1], strict=True):
        yield [int(ranks[first]), int(ranks[last]), int(rows[first])]


class _Seen:
    """What is counted of row groups on their way to a file."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.steps: tuple[int, int] | None = None

    def watched(self, groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield row groups as they come, and count."""
        for group in groups:
            rank, count = np.unique(group["rank"].to_numpy(), return_counts=True)
            for one, n in zip(rank.tolist(), count.tolist(), strict=True):
                self.rows[one] = self.rows.get(one, 0) + n
            if "step" in group.column_names and group.num_rows:
                found = pc.min_max(group["step"]).as_py()
                low, high = self.steps or (found["min"], found["max"])
                self.steps = min(low, found["min"]), max(high, found["max"])
            yield group


def _row_groups(parts: Iterable[pa.Table], at_least: int) -> Iterator[pa.Table]:
    """Yield the rows in groups that end where a rank does, and have so many rows but for the last."""
    waiting: list[pa.Table] = []
    size = 0
    for part in parts:
        rank = part["rank"].to_numpy()
        borders = [0, *(np.flatnonzero(np.diff(rank)) + 1).tolist(), len(rank)]
        for first, last in pairwise(borders):
            if last > first:
                waiting.append(part.slice(first, last - first))
                size += last - first
            if size >= at_least:
                yield pa.concat_tables(waiting).unify_dictionaries()
                waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting).unify_dictionaries()
