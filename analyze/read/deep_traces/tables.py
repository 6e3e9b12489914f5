"""The deep traces of a run as its ``kernel`` and ``op`` tables, on the clock of the run.

Each trace is read into files of its own; those of a rank are then joined into one file a
table, a bounded part at a time, with names and ids that are unique in the rank. The
collectives stay those that the probe recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshscope.probe.schema.manifest import DEEP_STALLS_KEY
from meshscope.probe.schema.tables import NAME, TABLES

from ...tables.parquet_file import to_read
from ...tables.stored_tables import STORED, StoredTable, open_stored, write_table
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from ...wording.step_ranges import step_ranges
from ..reading import TemporaryFolder
from .cache import DeepCache
from .files import DeepFile, Faults, deep_files
from .reading import DeepTrace, read_deep_trace
from .steps import own_steps

_ROWS = 1 << 16
"""Rows at once: bounds the memory beside a whole trace."""
_TIMES = ("start_ns", "launch_ns")
_CORRELATIONS = ("correlation", "wait_correlation")
_MOST_POSITION = (1 << 31) - 1


def with_deep_traces(
    trace: Trace,
    manifests: Mapping[int, Mapping[str, Any]],
    cache: DeepCache | None = None,
    within: tuple[int, int] | None = None,
) -> Trace:
    """Return the trace with the kernels and operators of the sealed deep traces of its run.

    Of steps that several traces of a rank hold, the one that was sealed last counts. The
    limits say which steps are known, and which traces were left out. The same trace is
    returned where the run has none.

    Args:
        trace: A run of ours; its times are those of the clocks of its ranks.
        manifests: The manifest of each rank.
        cache: Keeps what was read of them; None to keep nothing.
        within: First and last step of interest: traces that hold none of them are not read. All if not given.
    """
    faults = Faults()
    files = _files_within(deep_files(trace.path, manifests, faults), within)
    ranks, temporary = [], None
    for rank in sorted(files.keys() & set(trace.ranks)):
        try:
            temporary = temporary or TemporaryFolder()
            joined = _of_rank(trace, rank, files[rank], temporary.path, faults, cache)
        except OSError as error:
            where = error.filename or gettempdir()
            faults.add(rank, message("missing.deep_traces", error=error.strerror, file=str(where)))
            continue
        if joined is not None:
            ranks.append(joined)
    if not ranks:
        limits = faults.limits()
        return replace(trace, limits=(*trace.limits, *limits)) if limits else trace
    changes: dict[str, pa.Table | StoredTable] = {
        name: open_stored(name, {one.rank: one.stored[name] for one in ranks}, owner=temporary)
        for name in STORED
    }
    names = pa.concat_tables([one.names for one in ranks]).combine_chunks()
    found = trace.with_tables({**changes, NAME.name: names})
    return replace(
        found,
        kernel_steps={one.rank: one.kernel_steps for one in ranks},
        limits=(*trace.limits, *_known(ranks), *_stalls(manifests), *faults.limits()),
    )


def _files_within(
    files: Mapping[int, list[DeepFile]], within: tuple[int, int] | None
) -> dict[int, list[DeepFile]]:
    """Return the files that may hold some steps, by rank; where numbers may differ, all."""
    if within is None:
        return dict(files)
    first, last = within
    kept = {
        rank: [
            file
            for file in own
            if first <= last
            and (
                not file.is_counted_alike
                or (file.name.first_step <= last and file.name.last_step >= first)
            )
        ]
        for rank, own in files.items()
    }
    return {rank: own for rank, own in kept.items() if own}


class _RankTraces(msgspec.Struct, frozen=True, kw_only=True):
    """All traces of a rank, joined."""

    rank: int
    steps: tuple[int, ...]
    kernel_steps: tuple[int, ...]
    tickets: tuple[str, ...]
    outside: int
    stored: dict[str, Path]
    names: pa.Table


def _of_rank(
    trace: Trace,
    rank: int,
    files: Sequence[DeepFile],
    folder: Path,
    faults: Faults,
    cache: DeepCache | None,
) -> _RankTraces | None:
    steps = own_steps(trace.tables["step"], rank)
    read = [
        found
        for at, file in enumerate(files)
        if (found := read_deep_trace(file, steps, folder / f"{rank}-{at}", faults, cache))
    ]
    source_of = {step: at for at, one in enumerate(read) for step in one.steps}
    for at, one in enumerate(read):
        lost = [step for step in one.steps if source_of[step] != at]
        if lost:
            ticket = one.file.name.ticket
            note = message("missing.deep_trace_twice", steps=step_ranges(lost), ticket=ticket)
            faults.add(rank, note)
    if not read:
        return None
    owned = [
        (one, np.array([step for step in one.steps if source_of[step] == at], dtype=np.int64))
        for at, one in enumerate(read)
    ]
    kept = [(one, own) for one, own in owned if len(own)]
    stored, names = _joined(rank, kept, folder)
    for at in range(len(files)):
        rmtree(folder / f"{rank}-{at}", ignore_errors=True)
    return _RankTraces(
        rank=rank,
        steps=tuple(sorted(source_of)),
        kernel_steps=tuple(sorted(int(s) for one, own in kept if one.has_kernels for s in own)),
        tickets=tuple(one.file.name.ticket for one, _ in kept),
        outside=sum(one.outside for one, _ in kept),
        stored=stored,
        names=names,
    )


class _Shift(msgspec.Struct, frozen=True):
    """How the rows of one trace become rows of its rank."""

    steps: npt.NDArray[np.int64]
    offset_ns: int
    name_ids: npt.NDArray[np.int32]
    """New id of each name by its old one."""
    op_id: int
    correlation: int
    position: int

    def applied(self, rows: pa.Table) -> pa.Table:
        """Return the rows of the steps, with times and ids of the rank."""
        rows = rows.filter(pc.is_in(rows["step"], pa.array(self.steps)))
        for name in rows.column_names:
            at, kind = rows.column_names.index(name), rows.schema.field(name)
            values = self._changed(name, rows[name])
            if values is not None:
                rows = rows.set_column(at, kind, values.cast(kind.type))
        return rows

    def _changed(self, name: str, values: pa.ChunkedArray) -> Any:
        """Return the new values of a column, None where it stays."""
        if name in _TIMES:
            return pc.subtract(values, pa.scalar(self.offset_ns, pa.int64()))
        if name == "name_id":
            return pa.array(self.name_ids[values.to_numpy()])
        if name == "op_id":
            return _added(values, self.op_id, least=0)
        if name in _CORRELATIONS:
            return _added(values, self.correlation, least=1)
        if name == "position":
            moved = pc.add(values.cast(pa.int64()), self.position)
            return pc.if_else(pc.less_equal(moved, _MOST_POSITION), moved, None)
        return None


def _added(values: pa.ChunkedArray, amount: int, *, least: int) -> Any:
    """Return values of which those that are ids, from ``least`` on, are moved."""
    return pc.if_else(pc.greater_equal(values, least), pc.add(values, amount), values)


def _joined(
    rank: int, kept: Sequence[tuple[DeepTrace, npt.NDArray[np.int64]]], folder: Path
) -> tuple[dict[str, Path], pa.Table]:
    """Write one file a table with the rows of all traces of a rank; return them and its names."""
    ids: dict[str, int] = {}
    shifts = []
    op_id = correlation = position = 0
    for one, steps in kept:
        new = [ids.setdefault(str(text), len(ids)) for text in one.names["name"].to_pylist()]
        name_ids = np.array(new, dtype=np.int32)
        shifts.append(_Shift(steps, one.offset_ns, name_ids, op_id, correlation, position))
        op_id += pq.read_metadata(to_read(one.stored["op"])).num_rows
        correlation += max(_largest(one, "kernel"), _largest(one, "runtime_call"))
        position += 1 + max(_largest(one, name, "position") for name in STORED)
    stored = {}
    for name in STORED:
        stored[name] = folder / name / f"rank={rank:05d}.parquet"
        stored[name].parent.mkdir(exist_ok=True)
        write_table(stored[name], name, _parts(name, kept, shifts))
    names = {"rank": [rank] * len(ids), "name_id": list(ids.values()), "name": list(ids)}
    return stored, NAME.conform(pa.table(names))


def _largest(one: DeepTrace, name: str, column: str = "correlation") -> int:
    values = pq.read_table(to_read(one.stored[name]), columns=[column])[column]
    return max(int(pc.max(values).as_py() or 0), 0) if len(values) else 0


def _parts(
    name: str,
    kept: Sequence[tuple[DeepTrace, npt.NDArray[np.int64]]],
    shifts: Sequence[_Shift],
) -> Iterator[pa.Table]:
    schema = TABLES[name].arrow_schema()
    for (one, _), shift in zip(kept, shifts, strict=True):
        with to_read(one.stored[name]) as source, pq.ParquetFile(source) as file:
            for batch in file.iter_batches(_ROWS):
                yield shift.applied(TABLES[name].conform(pa.Table.from_batches([batch]))).cast(
                    schema
                )


def _stalls(manifests: Mapping[int, Mapping[str, Any]]) -> Iterator[Limit]:
    """Yield for how long each deep trace held ranks up, where their training threads took it."""
    most: dict[str, tuple[int, int]] = {}
    for rank, manifest in sorted(manifests.items()):
        said = manifest.get("annotations")
        found = said.get(DEEP_STALLS_KEY) if isinstance(said, dict) else None
        for stall in found if isinstance(found, list) else ():
            match stall:
                case [str(ticket), int(stall_ns)] if stall_ns > most.get(ticket, (0, 0))[0]:
                    most[ticket] = (stall_ns, rank)
    for ticket, (stall_ns, rank) in most.items():
        yield message("scope.trace_stalled", ticket=ticket, stall_ns=stall_ns, rank=rank)


def _known(ranks: Sequence[_RankTraces]) -> Iterator[Limit]:
    """Yield which steps of which ranks are known in depth, and that others are not."""
    by_steps: dict[tuple[tuple[int, ...], tuple[int, ...]], list[_RankTraces]] = {}
    for one in ranks:
        by_steps.setdefault((one.steps, one.kernel_steps), []).append(one)
    for (steps, kernel_steps), found in by_steps.items():
        held_by = sorted({one.rank for one in found})
        tickets = list(dict.fromkeys(ticket for one in found for ticket in one.tickets))
        if kernel_steps:
            known = step_ranges(kernel_steps)
            yield message("scope.traced_steps", ranks=held_by, steps=known, tickets=tickets)
        if kernel_steps != steps:
            bare = step_ranges(sorted(set(steps) - set(kernel_steps)))
            yield message("scope.traced_operators", ranks=held_by, steps=bare, tickets=tickets)
        outside = sum(one.outside for one in found)
        if outside:
            yield message("missing.outside_traced_steps", ranks=held_by, count=outside)
