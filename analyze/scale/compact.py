"""A run with a file for each rank becomes one with segments of 256 ranks: fewer files to open, list and fetch.

Segments are made beside what is there. The list of them (``tables/segments.json``) is written last and
in one step: until then readers read the old files, from then on the segments, with the same
results. So a call that is killed costs nothing but its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.tables import STEP, TABLES

from ..load.ingested import is_ingested
from ..tables.part import StepRange
from ..tables.segment_files import (
    SegmentFile,
    SegmentList,
    by_rank,
    in_segments,
    read_list,
    write_list,
    write_segment_file,
)
from ..tables.stored_tables import Tables
from ..tables.table_folder import FOLDER, read_folder
from ..wording.limits import Limit
from ..wording.message import message
from .executors import Executor
from .kept_rows import keep_rows
from .segments import ranks_of_run, step_bounds
from .store import write_summaries

_BY_RANK = tuple(spec.name for spec in TABLES.values() if "rank" in spec.column_names())
_KEPT_WHOLE = ("recording", "progress", "standing", "noted_collective")
"""Tables that tell of the run or of its end, whatever steps are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What became of a run."""

    run: Path
    ranks: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: int
    """Rows that are in segments."""
    dropped_rows: int
    kept_steps: tuple[StepRange, ...]
    """Steps whose rows were kept; empty where all were."""


class _Task(NamedTuple):
    folder: Path
    ranks: tuple[int, ...]
    steps: tuple[StepRange, ...]
    generation: int

    def __str__(self) -> str:
        """Return what an error names."""
        return f"{self.folder}, ranks {self.ranks[0]}-{self.ranks[-1]}"


class _Made(NamedTuple):
    files: dict[str, SegmentFile]
    dropped_rows: int


def compact(
    run: Path,
    executor: Executor,
    on_done: Callable[[int], None],
    steps: Sequence[StepRange] = (),
) -> Compacted:
    """Put the tables of a run into segments, without the steps that are not to be kept.

    Before any is removed the run is summarised, and the rows of its summaries are kept for ever.

    Args:
        run: A run directory made from other tools' traces, or a synthetic one.
        executor: Where the work is done, a segment of 256 ranks at a time.
        on_done: Is told how many more ranks are done.
        steps: Steps to keep, some or several times some; what belongs to no step stays. All if not given.

    Raises:
        ConfigError: It is a run that the probe recorded, or it has none of the steps to keep.
        RunDirectoryError: It cannot be read.
        OSError: It cannot be written.
        LostWorkError: Workers died again and again.
    """
    ranks = ranks_of_run(run)
    if not is_ingested(run):
        raise ConfigError(
            message("refused.recorded_by_probe"),
            where=str(run),
            remedy=message("advice.leave_as_it_is"),
        )
    folder = run.resolve() / FOLDER
    kept = _held(folder, steps) if steps else ()
    if kept:
        _keep_summaries(run, executor)
    old = read_list(folder)
    before = _sizes(folder)
    generation = old.generation + 1 if old.tables else 0
    tasks = [_Task(folder, part, kept, generation) for part in in_segments(ranks)]
    done = iter(tasks)

    def on_segments(count: int) -> None:
        on_done(sum(len(next(done).ranks) for _ in range(count)))

    written = list(executor.map(_write_segments, tasks, on_segments))
    dropped = sum(one.dropped_rows for one in written)
    limits = (*old.limits, *_limits(kept, dropped))
    tables = _tables_of(written)
    write_list(folder, SegmentList(tables=tables, limits=limits, generation=generation))
    _remove_others(folder, tables)
    after = _sizes(folder)
    return Compacted(
        run=run,
        ranks=len(ranks),
        files_before=len(before),
        files_after=len(after),
        bytes_before=sum(before),
        bytes_after=sum(after),
        rows=sum(file.rows for one in written for file in one.files.values()),
        dropped_rows=dropped,
        kept_steps=kept,
    )


def _tables_of(written: Sequence[_Made]) -> dict[str, tuple[SegmentFile, ...]]:
    return {
        name: tuple(one.files[name] for one in written if name in one.files) for name in _BY_RANK
    }


def _keep_summaries(run: Path, executor: Executor) -> None:
    made = write_summaries(run, executor, lambda _: None)
    keep_rows(run.resolve(), made.folder, [one.name for one in made.segments])


def merged(steps: Sequence[StepRange]) -> tuple[StepRange, ...]:
    """Return ranges of steps in their order, as one where they overlap or follow each other."""
    found: list[StepRange] = []
    for one in sorted(steps):
        if found and one.first <= found[-1].last + 1:
            found[-1] = StepRange(found[-1].first, max(found[-1].last, one.last))
        else:
            found.append(one)
    return tuple(found)


def _held(folder: Path, steps: Sequence[StepRange]) -> tuple[StepRange, ...]:
    """Return the part of the steps that a run has; all that it holds would be removed for steps that it has none of.

    Raises:
        ConfigError: It has none of them, or no steps at all.
    """
    files = (folder / STEP.name).glob("*.parquet")
    bounds = [own for file in files for own in step_bounds(pq.read_metadata(file))]
    if not bounds:
        raise ConfigError(
            message("refused.no_ends_to_keep"),
            where="--keep-steps",
            remedy=message("advice.no_keep_steps"),
        )
    first, last = min(low for low, _ in bounds), max(high for _, high in bounds)
    held = [StepRange(max(one.first, first), min(one.last, last)) for one in merged(steps)]
    held = [one for one in held if one.first <= one.last]
    if not held:
        raise ConfigError(
            message("refused.none_of_steps", steps=_text(steps)),
            where="--keep-steps",
            remedy=message("advice.steps_of_run", first=first, last=last),
        )
    return tuple(held)


def _write_segments(task: _Task) -> _Made:
    """Write the segment of every table that has rows of some ranks."""
    tables = read_folder(task.folder, only=task.ranks)
    made, dropped = {}, 0
    for name in _BY_RANK:
        place = task.folder / name
        if not place.is_dir():
            continue
        counts = _Counts()
        parts = counts.watched(_parts(tables, name, task.ranks), name, task.steps)
        file = write_segment_file(place, name, task.ranks, parts, task.generation)
        dropped += counts.dropped
        if file is not None:
            made[name] = file
    return _Made(made, dropped)


def _parts(tables: Tables, name: str, ranks: tuple[int, ...]) -> Iterator[pa.Table]:
    """Yield the rows of a table by rank; of a large one a rank at a time."""
    stored = tables.stored(name)
    if stored is None:
        yield by_rank(tables[name])
        return
    for rank in ranks:
        if stored.rows.get(rank):
            yield stored.read(rank)


class _Counts:
    """Which rows are left out on the way."""

    def __init__(self) -> None:
        self.dropped = 0

    def watched(
        self, parts: Iterator[pa.Table], name: str, steps: Sequence[StepRange]
    ) -> Iterator[pa.Table]:
        """Yield the rows of the steps to keep, and of no step, and count the others."""
        for part in parts:
            kept = part
            if steps and "step" in part.column_names and name not in _KEPT_WHOLE:
                step = pc.fill_null(part["step"], -1)
                is_kept = pc.less(step, 0)
                for one in steps:
                    own = pc.and_(pc.greater_equal(step, one.first), pc.less_equal(step, one.last))
                    is_kept = pc.or_(is_kept, own)
                kept = part.filter(is_kept)
            self.dropped += part.num_rows - kept.num_rows
            yield kept


def _limits(steps: Sequence[StepRange], dropped: int) -> Iterator[Limit]:
    if steps and dropped:
        yield message("missing.compacted", steps=_text(steps), records=dropped)


def _text(steps: Sequence[StepRange]) -> str:
    return ", ".join(one.text for one in steps)


def _tables_files(folder: Path) -> Iterator[Path]:
    for name in _BY_RANK:
        yield from (folder / name).glob("*.parquet")


def _sizes(folder: Path) -> list[int]:
    return [file.stat().st_size for file in _tables_files(folder)]


def _remove_others(folder: Path, tables: Mapping[str, tuple[SegmentFile, ...]]) -> None:
    """Remove what no reader reads any more."""
    listed = {folder / name / file.name for name, files in tables.items() for file in files}
    for file in list(_tables_files(folder)):
        if file not in listed:
            file.unlink(missing_ok=True)
