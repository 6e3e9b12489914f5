"""Summaries on disk: a Parquet file for some ranks, named by its content, made by one worker.

A file that is there was finished, and its name says what it was made from: a second run of the same
command makes only what is missing or has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from meshscope.probe.reader.part_sizes import last_step, unpacked_bytes
from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.manifest import (
    FILE_MODE,
    MANIFEST_NAME,
    part_directories,
    read_json,
)
from meshscope.probe.schema.reading import file_hash
from meshscope.probe.schema.rundir import require_run

from ..align.topology.kept import FILE_NAME as TOPOLOGY_NAME
from ..load.ingested import counted_rows, is_ingested, rows_by_rank, steps_of_ranks
from ..load.load import load_trace
from ..tables.parquet_file import to_read, to_write
from ..tables.segment_files import read_list
from ..tables.source_code import DERIVING, RECORDED, code_version
from ..tables.table_folder import FOLDER as TABLES_FOLDER
from ..tables.table_folder import drafted
from ..tables.unused_memory import release_unused
from ..wording.message import message
from .kept_rows import kept_names, with_kept
from .rank_pieces import RankPieces
from .summary import SCHEMA, summarise
from .worker_memory import UNPACKED_FACTOR, in_room, recorded_in_room, room_for_records

SUMMARY_VERSION = 1
"""Rises with every change of what a row says, so that older files are made anew."""
SEGMENT_RANKS = 32
"""Ranks of one file. It does not follow the number of workers: files would differ between them."""
_CODE = (
    *DERIVING,
    *RECORDED,
    "analyze/account/ledger",
    "analyze/explain/slow_ranks",
    "analyze/scale",
)
"""What rows are made by: those of other code are made anew."""
_ALL_ROWS = 1 << 62
_REPEATED = ["wall_s", *(one.name for one in SCHEMA if pa.types.is_integer(one.type))]
"""Columns in which values repeat."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """How large the records of a run of the probe are."""

    unpacked: Mapping[int, int]
    """Bytes that those of ranks take once they are unpacked."""
    steps: int
    """Steps of the rank that has most."""

    @classmethod
    def of(cls, run: Path) -> Recorded:
        """Return the sizes of a run; only the heads of blocks are read, and the last ones whole."""
        parts = {rank: [*own.values()] for rank, own in part_directories(run).items()}
        unpacked = {rank: sum(map(unpacked_bytes, own)) for rank, own in parts.items()}
        steps = (sum(last_step(one) + 1 for one in own) for own in parts.values())
        return cls(unpacked, max(steps, default=0))

    def of_ranks(self, ranks: Collection[int]) -> Recorded:
        """Return what a worker needs to know for some ranks."""
        return Recorded({rank: self.unpacked[rank] for rank in ranks}, self.steps)


@dataclass(frozen=True, slots=True)
class Segment:
    """Some ranks of a run, and where their summaries go."""

    run: Path
    folder: Path
    ranks: tuple[int, ...]
    limit_bytes: float | None = None
    """Memory of a worker."""
    recorded: Recorded | None = None
    """What the probe recorded, where that decides how many ranks are read together."""

    def __str__(self) -> str:
        """Return what an error names."""
        return f"{self.run}, ranks {self.ranks[0]}-{self.ranks[-1]}"


class _Portions(NamedTuple):
    """How the ranks of a segment are read."""

    together: tuple[tuple[int, ...], ...]
    in_pieces: tuple[int, ...] = ()
    """Those of which some steps are read at a time."""
    room_bytes: float = 0.0
    """Memory for these."""


class SegmentFacts(NamedTuple):
    """What the manifest says of one file."""

    name: str
    ranks: tuple[int, ...]
    rows: int
    first_step: int | None
    last_step: int | None
    """Of any of its ranks; None without rows."""
    dropped: dict[int, int]
    """Records that the probe counted as lost, by rank; it counts them by recording, not by step."""
    is_new: bool
    """Whether it was made now."""


def ranks_of_run(run: Path) -> tuple[int, ...]:
    """Return the ranks that a run directory holds.

    Raises:
        RunDirectoryError: It is no run directory.
    """
    require_run(run)
    if is_ingested(run):
        return tuple(sorted(read_json(run / MANIFEST_NAME)["ingested"]["ranks"]))
    return tuple(sorted(part_directories(run)))


def segments_of(run: Path, folder: Path, limit_bytes: float | None = None) -> list[Segment]:
    """Return the segments of a run by rank.

    Args:
        run: A run directory.
        folder: Where their files go.
        limit_bytes: Memory of a worker, if it is limited.

    Raises:
        RunDirectoryError: It is no run directory, or has no rank.
    """
    ranks = ranks_of_run(run)
    if not ranks:
        raise RunDirectoryError(message("refused.no_rank_recorded"), where=str(run))
    is_limited = limit_bytes is not None and not is_ingested(run)
    recorded = Recorded.of(run) if is_limited else None
    parts = (ranks[first : first + SEGMENT_RANKS] for first in range(0, len(ranks), SEGMENT_RANKS))
    return [
        Segment(run, folder, own, limit_bytes, recorded and recorded.of_ranks(own)) for own in parts
    ]


def write_segment(segment: Segment) -> SegmentFacts:
    """Summarise the ranks of a segment, unless its file is there; memory holds their records.

    Raises:
        OSError: The file cannot be written.
        RunDirectoryError: The records cannot be read.
    """
    portions = _Portions((segment.ranks,))
    place = _place(segment, portions)
    if not place.is_file():
        portions = _portions(segment)
        place = _place(segment, portions)
    if is_new := not place.is_file():
        _write(segment, place, portions)
    with to_read(place) as source:
        footer = pq.read_metadata(source)
    bounds = list(step_bounds(footer))
    return SegmentFacts(
        name=place.name,
        ranks=segment.ranks,
        rows=int(footer.num_rows),
        first_step=min((low for low, _ in bounds), default=None),
        last_step=max((high for _, high in bounds), default=None),
        dropped=_dropped(segment),
        is_new=is_new,
    )


def write_rows(rows: pa.Table, file: Path) -> None:
    """Write rows of summaries so that they are read fast: the first answer spends most of its time there.

    Of times no two are the same: a dictionary of them takes thrice the time to read, and saves nothing. All ranks have the
    same lengths of steps. One row group: one a rank takes longer to open than to read.

    Raises:
        OSError: The file cannot be written.
    """
    with (
        to_write(file) as sink,
        pq.ParquetWriter(sink, SCHEMA, compression="lz4", use_dictionary=_REPEATED) as out,
    ):
        if rows.num_rows:
            out.write_table(rows.combine_chunks(), row_group_size=rows.num_rows)


def _place(segment: Segment, portions: _Portions) -> Path:
    """Return the file of a segment that is read in some portions."""
    name = f"{segment.ranks[0]:05d}-{segment.ranks[-1]:05d}.{_key(segment, portions)[:16]}.parquet"
    return segment.folder / name


def _write(segment: Segment, place: Path, portions: _Portions) -> None:
    with drafted(place.parent, f"{place.stem}.") as folder:
        draft = folder / place.name
        rows = pa.concat_tables(_summarised(segment, portions))
        write_rows(with_kept(segment.run, segment.ranks, rows), draft)
        draft.chmod(FILE_MODE)
        draft.replace(place)
        del rows
        _release(segment)


def _summarised(segment: Segment, portions: _Portions) -> Iterator[pa.Table]:
    """Yield the rows of a segment: 180 bytes a rank and step, so they have room."""
    for ranks in portions.together:
        if ranks[0] in portions.in_pieces:
            yield _summarised_in_pieces(segment, ranks[0], portions.room_bytes)
            continue
        # One rank has room whole: what is left out of a run without room would be missing in a row.
        # A few steps in depth would be other work than the rest of the run.
        wanted = Wanted(most_rows=_ALL_ROWS, ranks=ranks, in_depth=False)
        trace = load_trace(segment.run, wanted=wanted)
        rows = summarise(trace, ranks)
        del trace
        _release(segment)
        yield rows


def _summarised_in_pieces(segment: Segment, rank: int, room_bytes: float) -> pa.Table:
    """Return the rows of a rank that has no room whole.

    Raises:
        ConfigError: A step with those beside it has none either.
    """
    found = [SCHEMA.empty_table()]
    pieces = RankPieces(segment.run, rank, room_bytes, segment.limit_bytes or 0.0)
    for first, end in pieces.ranges:
        _release(segment)
        found.append(pieces.rows(first, end))
    del pieces
    _release(segment)
    return pa.concat_tables(found).combine_chunks()


def _release(segment: Segment) -> None:
    """Give back what a part of the work took, where memory is limited: it would be held beside the next part."""
    if segment.limit_bytes is not None:
        release_unused()


def _portions(segment: Segment) -> _Portions:
    """Return how the ranks of a segment are read: as many together as have room.

    Those of a recorded run are all read together unless memory is limited: which steps of theirs are the
    same, their communication tells.

    Raises:
        ConfigError: One rank of a run that was ingested has no room.
    """
    if segment.limit_bytes is not None and segment.recorded is not None:
        unpacked, steps = segment.recorded.unpacked, segment.recorded.steps
        room = room_for_records(segment.limit_bytes, steps * len(segment.ranks))
        together = tuple(recorded_in_room(segment.ranks, unpacked, room))
        in_pieces = (rank for rank in segment.ranks if unpacked[rank] * UNPACKED_FACTOR > room)
        return _Portions(together, tuple(in_pieces), room)
    rows: Mapping[int, int] = {}
    steps = 0
    if is_ingested(segment.run):
        rows = rows_by_rank(segment.run)
        steps = steps_of_ranks(segment.run, segment.ranks)
        if segment.limit_bytes is not None and not rows:
            rows, steps = counted_rows(segment.run, segment.ranks)
    return _Portions(tuple(in_room(segment.ranks, rows, steps, segment.limit_bytes)))


def step_bounds(footer: pq.FileMetaData) -> Iterator[tuple[int, int]]:
    """Yield the first and last step of each row group of a file with a column ``step``."""
    at = footer.schema.names.index("step")
    for group in range(footer.num_row_groups):
        steps = footer.row_group(group).column(at).statistics
        if steps is not None and steps.has_min_max:
            yield int(steps.min), int(steps.max)


def _key(segment: Segment, portions: _Portions) -> str:
    """Return the hash of everything that a segment is made from."""
    code = code_version(_CODE)
    key = hashlib.sha256(f"summary {SUMMARY_VERSION} {code} {segment.ranks}".encode())
    files = [segment.run / MANIFEST_NAME, segment.run / TOPOLOGY_NAME]
    # The manifest of a run that was ingested holds the hash of its source.
    if is_ingested(segment.run):
        removed = [*read_list(segment.run / TABLES_FOLDER).limits, *kept_names(segment.run)]
        for what in removed:
            key.update(str(what).encode())
    else:
        # Ranks that are read apart may not show which steps of theirs are the same.
        if len(portions.together) > 1:
            key.update(str(portions.together).encode())
        # Some steps may not show along which axis of the mesh a group lies.
        if portions.in_pieces:
            key.update(f"{portions.in_pieces} {portions.room_bytes}".encode())
        directories = part_directories(segment.run)
        for rank in segment.ranks:
            for directory in directories.get(rank, {}).values():
                files += sorted(file for file in directory.iterdir() if file.is_file())
    for file in files:
        key.update(f"{file.relative_to(segment.run)}\0".encode("utf-8", "surrogateescape"))
        with suppress(FileNotFoundError):
            key.update(bytes.fromhex(file_hash(file)))
    return key.hexdigest()


def _dropped(segment: Segment) -> dict[int, int]:
    """Return how many records of each rank were lost; those that lost none are left out."""
    if is_ingested(segment.run):
        return {}
    parts, found = part_directories(segment.run), {}
    for rank in segment.ranks:
        lost = sum(map(_lost, parts.get(rank, {}).values()))
        if lost:
            found[rank] = lost
    return found


def _lost(directory: Path) -> int:
    try:
        counters: Any = read_json(directory / MANIFEST_NAME).get("counters")
    except (OSError, RunDirectoryError):
        return 0
    named = counters.items() if isinstance(counters, dict) else ()
    return sum(n for name, n in named if str(name).endswith("_dropped") and type(n) is int)
