"""A synthetic job of any size as a run directory, in bounded memory: windows of steps, then segments of ranks.

Records are made for a few steps of all ranks at a time and laid aside by blocks of ranks. Then the
blocks of each segment of 256 ranks are put together, one after the other. Windows do not
depend on each other, nor do segments, so both may be made by several processes or a cluster. The
result is that of the writer of a whole capture, to the last value.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.manifest import DIRECTORY_MODE

from ..load.ingested import write_ingested
from ..scale.executors import Executor
from ..tables.arrays import IntArray
from ..tables.segment_files import (
    SegmentFile,
    SegmentList,
    in_segments,
    write_list,
    write_segment_file,
)
from ..tables.table_folder import FOLDER
from ..wording.message import message
from .faults import FaultKind
from .job import SyntheticJob
from .record import records_of, without_records
from .run_directory import drafted_job
from .simulate import Simulation, make_simulation
from .truth import Truth

ROWS_AT_ONCE = 1_000_000
"""Records that are made or put together at a time: about 300 MB."""
_RECORDED = ("step", "microbatch", "span", "collective", "p2p")
_ASIDE = "aside"
"""Folder of the windows in a draft."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Some steps of all ranks, and where their records are laid aside."""

    job: SyntheticJob
    folder: Path
    first_step: int
    end_step: int
    begin: IntArray
    blocks: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        """Return what an error names."""
        return f"steps {self.first_step}-{self.end_step - 1} of a synthetic job"


class _Segment(NamedTuple):
    """A segment of one table, to be put together from blocks of all windows."""

    draft: Path
    table: str
    ranks: tuple[int, ...]
    first_block: int
    end_block: int

    def __str__(self) -> str:
        """Return what an error names."""
        return f"{self.table} of ranks {self.ranks[0]}-{self.ranks[-1]} of a synthetic job"


def can_be_sharded(job: SyntheticJob) -> bool:
    """Return whether no part of a capture of the job needs all of it at once."""
    # Clocks are aligned, and the progress of ranks that hang is counted, over all records.
    whole = job.of_kind(FaultKind.CLOCK_SKEW, FaultKind.HANG)
    return not whole and not job.sample_interval_ns


def write_sharded_run(
    job: SyntheticJob, truth: Truth | None, runs_dir: Path, executor: Executor
) -> Path:
    """Write the tables of a job, the job and its truth; return the path of the run.

    Memory holds about a million records a worker, or one step of all ranks where it has more.

    Args:
        job: The job.
        truth: What its faults cost, if that is to be beside it.
        runs_dir: Folder of runs.
        executor: Where the work is done; its workers see the folder.

    Raises:
        ConfigError: The job was written there before, its schedule does not fit, or it has clocks
            that are off, a rank that hangs or samples of devices.
        OSError: It cannot be written.
        LostWorkError: Workers died again and again.
    """
    if not can_be_sharded(job):
        raise ConfigError(
            message("refused.needs_whole_capture"),
            where="job",
            remedy=message("advice.write_run"),
        )
    simulation = make_simulation(job)
    bare = without_records(simulation)
    with drafted_job(job, truth, runs_dir) as draft:
        (draft / _ASIDE).mkdir(mode=DIRECTORY_MODE)
        segments = list(in_segments(bare.ranks))
        size = _block_ranks(simulation)
        blocks = [
            [ranks[at : at + size] for at in range(0, len(ranks), size)] for ranks in segments
        ]
        together = tuple(block for own in blocks for block in own)
        windows = list(_windows(simulation, draft, together))
        list(executor.map(_write_window, windows, _no_notice))
        ends = np.cumsum([0, *map(len, blocks)]).tolist()
        tasks = [
            _Segment(draft, table, ranks, first, end)
            for table in _RECORDED
            for ranks, (first, end) in zip(segments, pairwise(ends), strict=True)
        ]
        made = list(executor.map(_write_segment, tasks, _no_notice))
        _remove_empty(draft / FOLDER)
        write_list(draft / FOLDER, SegmentList(tables=_by_table(tasks, made)))
        shutil.rmtree(draft / _ASIDE)
        return write_ingested(bare, draft, job.key(), name=bare.origin, source_bytes=0)


def _no_notice(_count: int) -> None:
    """Tell nobody how far it is."""


def _by_table(
    tasks: Sequence[_Segment], made: Sequence[SegmentFile | None]
) -> dict[str, tuple[SegmentFile, ...]]:
    found: dict[str, tuple[SegmentFile, ...]] = {}
    for task, file in zip(tasks, made, strict=True):
        if file is not None:
            found[task.table] = (*found.get(task.table, ()), file)
    return found


def _rows_of_rank_step(simulation: Simulation) -> int:
    """Return about how many records a rank leaves in a step, for the sizes of parts."""
    operations = len(simulation.program.kind) + len(simulation.program.plan)
    return operations // simulation.job.layout.pp + 1


def _block_ranks(simulation: Simulation) -> int:
    of_rank = _rows_of_rank_step(simulation) * simulation.job.steps
    return max(ROWS_AT_ONCE // of_rank, 1)


def _windows(
    simulation: Simulation, draft: Path, blocks: tuple[tuple[int, ...], ...]
) -> Iterator[_Window]:
    """Simulate the job without records; yield its windows, each with the begin of its first step."""
    job = simulation.job
    of_step = _rows_of_rank_step(simulation) * job.layout.world_size
    size = max(ROWS_AT_ONCE // of_step, 1)
    for times in simulation.steps():
        if times.step % size == 0:
            end = min(times.step + size, job.steps)
            yield _Window(job, draft / _ASIDE, times.step, end, times.begin, blocks)


def _write_window(window: _Window) -> None:
    """Make the records of a window and lay them aside: a file a table, in it a batch a block of ranks."""
    simulation = make_simulation(window.job)
    steps = simulation.steps(window.first_step, window.begin, window.end_step)
    for name, table in records_of(simulation, steps).items():
        rank = table["rank"].to_numpy()
        # Dictionaries of all batches of a file must be the same.
        table = table.unify_dictionaries().combine_chunks()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        place = window.folder / f"{name}-{window.first_step:09d}.arrow"
        with (
            pa.OSFile(os.fsencode(place), "wb") as sink,
            pa.ipc.new_file(sink, table.schema, options=options) as out,
        ):
            for block in window.blocks:
                first, end = np.searchsorted(rank, [block[0], block[-1] + 1]).tolist()
                out.write_batch(_one_batch(table.slice(first, end - first)))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch, also where there are none: blocks are found by their number."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _write_segment(segment: _Segment) -> SegmentFile | None:
    folder = segment.draft / FOLDER / segment.table
    folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    files = sorted((segment.draft / _ASIDE).glob(f"{segment.table}-*.arrow"))
    return write_segment_file(folder, segment.table, segment.ranks, _blocks(files, segment))


def _remove_empty(folder: Path) -> None:
    """Remove the folders of tables without rows.

    Not before all are written: another process may be about to write into one.
    """
    for table in _RECORDED:
        with suppress(OSError):
            (folder / table).rmdir()


def _blocks(files: Sequence[Path], segment: _Segment) -> Iterator[pa.Table]:
    """Yield the rows of each block of ranks, by rank and time."""
    for block in range(segment.first_block, segment.end_block):
        rows = pa.concat_tables(_batch(file, block) for file in files)
        order = np.argsort(rows["rank"].to_numpy(), kind="stable")
        yield rows.unify_dictionaries().take(pa.array(order)).combine_chunks()


def _batch(file: Path, number: int) -> pa.Table:
    with pa.OSFile(os.fsencode(file), "rb") as source:
        return pa.Table.from_batches([pa.ipc.open_file(source).get_batch(number)])
