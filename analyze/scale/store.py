"""The summaries of a run: made by an executor, listed in a manifest, read as one table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import ConfigError, RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import (
    DIRECTORY_MODE,
    MANIFEST_NAME,
    read_json,
    write_json,
)

from ..tables.parquet_file import to_read
from ..tables.threads import map_in_threads
from ..wording.message import message
from .executors import Executor
from .outline import Outline, outline_of
from .segments import SUMMARY_VERSION, SegmentFacts, segments_of, write_segment
from .summary import SCHEMA

FOLDER = "summaries"
"""The folder in a run directory."""
SMALL_ROWS = 1 << 17
"""Files of up to so many rows are read side by side: a few of them take tens of megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summaries:
    """The summaries of a run."""

    run: Path
    folder: Path
    outline: Outline
    segments: tuple[SegmentFacts, ...]

    @property
    def rows(self) -> int:
        """Return how many there are: one a rank and step."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """Return how much the files take.

        Raises:
            OSError: One is missing.
        """
        return sum((self.folder / segment.name).stat().st_size for segment in self.segments)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks of the run, those without a finished step included."""
        return tuple(rank for segment in self.segments for rank in segment.ranks)

    def read(
        self,
        columns: Sequence[str],
        steps: Collection[int] | None = None,
        ranks: Collection[int] | None = None,
        *,
        zeros: bool = True,
    ) -> pa.Table:
        """Return some columns of all rows, by rank and step.

        Args:
            columns: Their names, ``rank`` and ``step`` among them.
            steps: Only these.
            ranks: Only these; files without them are not opened.
            zeros: Whether columns that hold nothing but 0 are read; the table lacks them if not.

        Raises:
            RunDirectoryError: A file is missing or damaged.
        """
        wanted = None if ranks is None else frozenset(ranks)
        parts = [
            _chosen(_chosen(part, "step", steps), "rank", wanted)
            for part in self.parts(columns, wanted, zeros=zeros)
        ]
        if not parts:
            return SCHEMA.empty_table().select(list(columns))
        held = {name for part in parts for name in part.column_names}
        return pa.concat_tables(
            _with_zeros(part, [name for name in columns if name in held]) for part in parts
        )

    def parts(
        self,
        columns: Sequence[str],
        ranks: frozenset[int] | None = None,
        *,
        zeros: bool = True,
    ) -> Iterator[pa.Table]:
        """Yield some columns of the rows of one file after the other.

        Args:
            columns: Their names.
            ranks: Only files with one of these; all if not given.
            zeros: Whether columns that hold nothing but 0 are read; a table lacks them if not.

        Raises:
            RunDirectoryError: A file is missing or damaged.
        """

        def read(one: SegmentFacts) -> pa.Table:
            return _read(self.folder / one.name, columns, zeros=zeros)

        wanted = [
            one
            for one in self.segments
            if one.rows and (ranks is None or not ranks.isdisjoint(one.ranks))
        ]
        is_small = max((one.rows for one in wanted), default=0) <= SMALL_ROWS
        yield from map_in_threads(read, wanted, side_by_side=is_small)


def write_summaries(
    run: Path,
    executor: Executor,
    on_done: Callable[[int], None],
    folder: Path | None = None,
    *,
    limit_bytes: float | None = None,
) -> Summaries:
    """Make the summaries of a run, as far as they are not there, and return them.

    Args:
        run: A run directory.
        executor: Where the work is done.
        on_done: Is told how many more ranks are done.
        folder: Where they go; into the run if not given.
        limit_bytes: Memory of a worker: with less it reads fewer ranks at a time, or some steps of one.

    Raises:
        RunDirectoryError: It is no run directory, or cannot be read.
        OSError: The folder cannot be written.
        LostWorkError: Workers died again and again.
    """
    folder = (run / FOLDER if folder is None else folder).resolve()
    tasks = segments_of(run.resolve(), folder, limit_bytes)
    folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    done = iter(tasks)

    def on_segments(count: int) -> None:
        # Segments are alike but for the last, whichever is done first.
        on_done(sum(len(next(done).ranks) for _ in range(count)))

    segments = tuple(executor.map(write_segment, tasks, on_segments))
    ranks = [rank for task in tasks for rank in task.ranks]
    outline = outline_of(run, ranks, limit_bytes)
    made = Summaries(run=run, folder=folder, outline=outline, segments=segments)
    write_json(folder / MANIFEST_NAME, _manifest(made))
    _remove_others(folder, {segment.name for segment in segments})
    return made


def read_summaries(run: Path, folder: Path | None = None) -> Summaries:
    """Open summaries that were made before; only their manifest is read.

    Raises:
        RunDirectoryError: There are none, or their manifest is damaged.
    """
    folder = run / FOLDER if folder is None else folder
    manifest = read_json(folder / MANIFEST_NAME)
    try:
        if manifest["version"] != SUMMARY_VERSION:
            raise ConfigError(
                message("refused.summary_version", found=manifest["version"], known=SUMMARY_VERSION)
            )
        layout = manifest["layout"]
        return Summaries(
            run=run,
            folder=folder,
            outline=Outline(
                ParallelLayout.from_json(layout) if layout else None,
                manifest["schedule"],
                manifest["microbatches"],
            ),
            segments=tuple(map(_facts, manifest["segments"])),
        )
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunDirectoryError(
            message("refused.summary_manifest", error=error),
            where=str(folder / MANIFEST_NAME),
            remedy=message("advice.summarize_again"),
        ) from error


def _chosen(part: pa.Table, name: str, values: Collection[int] | None) -> pa.Table:
    """Return the rows with some values in a column; all if none are given."""
    if values is None:
        return part
    held = np.isin(part[name].to_numpy(), list(values))
    return part if held.all() else part.filter(pa.array(held))


def _with_zeros(part: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return some columns; those that were left out are 0."""
    for name in names:
        if name not in part.column_names:
            zeros = np.zeros(part.num_rows, SCHEMA.field(name).type.to_pandas_dtype())
            part = part.append_column(SCHEMA.field(name), pa.array(zeros))
    return part.select(list(names))


def _facts(value: Mapping[str, Any]) -> SegmentFacts:
    dropped = {int(rank): int(count) for rank, count in value["dropped"].items()}
    bounds = {name: value[name] for name in ("first_step", "last_step")}
    return SegmentFacts(
        name=str(value["name"]),
        ranks=tuple(map(int, value["ranks"])),
        rows=int(value["rows"]),
        dropped=dropped,
        is_new=False,
        **bounds,
    )


def _manifest(made: Summaries) -> dict[str, Any]:
    layout, schedule, microbatches = made.outline
    segments = [segment._asdict() for segment in made.segments]
    for segment in segments:
        segment["dropped"] = {str(rank): count for rank, count in segment["dropped"].items()}
        del segment["is_new"]
    return {
        "version": SUMMARY_VERSION,
        "layout": None if layout is None else layout.to_json(),
        "schedule": schedule,
        "microbatches": microbatches,
        "rows": made.rows,
        "segments": segments,
    }


def _remove_others(folder: Path, kept: set[str]) -> None:
    """Remove files of what the run no longer holds."""
    for file in folder.glob("*-*.*.parquet"):
        if file.name not in kept:
            file.unlink(missing_ok=True)


def _read(file: Path, columns: Sequence[str], *, zeros: bool) -> pa.Table:
    try:
        with to_read(file) as source, pq.ParquetFile(source) as opened:
            left_out = frozenset() if zeros else _zeros(opened.metadata, columns)
            held = [name for name in columns if name not in left_out]
            # Threads cost more than they save on a file of few ranks.
            return opened.read(columns=held, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise RunDirectoryError(
            message("refused.summaries_unreadable", reason=str(error).rstrip(".")),
            where=str(file),
            remedy=message("advice.summarize_again"),
        ) from error


def _zeros(footer: pq.FileMetaData, columns: Sequence[str]) -> frozenset[str]:
    """Return which columns hold nothing but 0, as the footer says; ranks and steps are always read."""
    names = footer.schema.names
    places = {name: names.index(name) for name in columns if name not in ("rank", "step")}
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    return frozenset(
        name
        for name, place in places.items()
        if all(_is_zero(group.column(place).statistics) for group in groups)
    )


def _is_zero(known: pq.Statistics | None) -> bool:
    return (
        known is not None
        and known.has_min_max
        and known.has_null_count
        and known.null_count == 0
        and known.min == known.max == 0
    )
