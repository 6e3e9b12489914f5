"""Memory timelines and snapshots of PyTorch, one file per rank, as one Trace.

Such files know nothing of steps, kernels or communication: the ``memory`` table is all
there is, with the moments begin, peak and end of each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.imported_tables import ALLOCATION_FAILURE
from meshscope.probe.schema.tables import MEMORY, RUN, TABLES
from meshscope.probe.schema.terms import CaptureLevel, MemoryPhase

from ...wording.limits import Limit
from ...wording.message import message
from ..file_limits import left_out_files, missing_ranks, shared_notes
from ..files import InputFile, rank_in_name
from .moments import CATEGORIES, MemoryRecord, Moment
from .snapshot import read_snapshot
from .timeline import read_events, read_sizes

_READERS = {
    "memory_snapshot": read_snapshot,
    "memory_events": read_events,
    "memory_sizes": read_sizes,
}
"""By the kind of a file."""
_NO_STEP, _NO_STAGE = -1, -1


def import_memory(
    path: Path, files: Sequence[tuple[InputFile, str]], *, limits: Sequence[Limit] = ()
) -> Trace:
    """Read files about memory.

    Args:
        path: What the user named; it becomes the name of the run.
        files: Files with the kind of each.
        limits: What is already known to be missing.

    Raises:
        TraceFormatError: Two files claim one rank, or no file can be read.
    """
    records, notes = _read_all(files)
    known = {
        "run_id": path.name,
        "world_size": max(records) + 1,
        "capture_level": CaptureLevel.STEPS.value,
    }
    return Trace(
        path=path,
        run=dict.fromkeys(RUN.column_names()) | known,
        layout=None,
        ranks=tuple(sorted(records)),
        tables={name: spec.empty() for name, spec in TABLES.items()}
        | {"memory": _memory_table(records), "allocation_failure": _failure_table(records)},
        limits=(*limits, *notes, *_limits(records)),
        origin="memory",
    )


def _read_all(
    files: Sequence[tuple[InputFile, str]],
) -> tuple[dict[int, MemoryRecord], list[Limit]]:
    """Return the readable files by rank, and a sentence for each other one."""
    records: dict[int, MemoryRecord] = {}
    label_of: dict[int, str] = {}
    errors: list[TraceFormatError] = []
    notes: list[Limit] = []
    for file, kind in files:
        rank = rank_in_name(file.label)
        try:
            if rank is None and len(files) > 1:
                raise TraceFormatError(
                    message("refused.names_no_rank"),
                    where=file.label,
                    remedy=message("advice.name_rank"),
                )
            record = _READERS[kind](file)
        except TraceFormatError as error:
            errors.append(error)
            continue
        if rank is None:
            rank = 0
            notes.append(message("assumed.rank_0"))
        if rank in records:
            raise TraceFormatError(
                message("refused.rank_twice", rank=rank, other=label_of[rank]),
                where=file.label,
                remedy=message("advice.one_file_a_rank"),
            )
        records[rank], label_of[rank] = record, file.label
    if not records:
        raise errors[0]
    return records, [*notes, *left_out_files(errors)]


def _memory_table(records: Mapping[int, MemoryRecord]) -> pa.Table:
    rows = [_row(rank, moment) for rank in sorted(records) for moment in records[rank].moments]
    return MEMORY.conform(pa.Table.from_pylist(rows, schema=_SCHEMA))


def _failure_table(records: Mapping[int, MemoryRecord]) -> pa.Table:
    names = ALLOCATION_FAILURE.column_names()
    rows = [
        {"rank": rank, **asdict(one)} for rank in sorted(records) for one in records[rank].failures
    ]
    if not rows:
        return ALLOCATION_FAILURE.empty()
    kinds = {name: pa.string() if name == "place" else pa.int64() for name in names}
    columns = {name: pa.array([row[name] for row in rows], kinds[name]) for name in names}
    return ALLOCATION_FAILURE.conform(pa.table(columns))


_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("rank", "step", "stage", "time_ns")),
        ("phase", pa.string()),
        *(
            (f"{name}_bytes", pa.int64())
            for name in ("allocated", "reserved", "peak", "capacity", *CATEGORIES)
        ),
    ]
)


def _row(rank: int, moment: Moment) -> dict[str, object]:
    sizes = moment.by_category or {}
    return {
        "rank": rank,
        "step": _NO_STEP,
        "stage": _NO_STAGE,
        "time_ns": moment.time_ns,
        "phase": MemoryPhase.OTHER.value,
        "allocated_bytes": moment.allocated_bytes,
        "reserved_bytes": moment.reserved_bytes,
        "peak_bytes": moment.peak_bytes,
        "capacity_bytes": moment.capacity_bytes,
        **{f"{name}_bytes": sizes.get(name) for name in CATEGORIES},
    }


def _limits(records: Mapping[int, MemoryRecord]) -> Iterator[Limit]:
    yield from missing_ranks(sorted(records), max(records) + 1, is_named=False)
    yield from shared_notes((rank, records[rank].notes) for rank in sorted(records))
