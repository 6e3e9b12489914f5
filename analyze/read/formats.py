"""The formats that are read: for each its mark in a file, its name, and its reader.

A new one is a folder of this package and a record of ``FORMATS``.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ..tables.trace import Trace
from ..wording.limits import Limit
from .files import DAMAGED_SQLITE, InputFile, InputFormat
from .reading import Reading
from .scratch import Scratch

_NUMBERS = rb"-?\d{1,20}+(?:\s*,\s*-?\d{1,20}+)*+"
_TIMELINE_EVENTS = re.compile(
    rb"\s*\[\s*\[\s*-?\d{1,20}\s*,\s*[1-4]\s*,\s*-?\d{1,20}\s*,\s*[0-7]\s*\]"
    rb"\s*(?:\]|,\s*\[\s*-?\d|,?\s*$)"
)
_TIMELINE_SIZES = re.compile(rb"\s*\[\s*\[\s*%b\s*+(?:,?\s*+(?:-?$|$)|\]\s*,\s*\[\s*\[)" % _NUMBERS)
_DUMP_KEY = re.compile(rb"pg_config|pg_status|profiling_name")
_NSIGHT_TABLE = re.compile(rb"CUPTI_ACTIVITY_KIND_|NVTX_EVENTS|META_DATA_EXPORT")


class Container(StrEnum):
    """What a file is made of, as its first bytes say."""

    OBJECT = "a JSON object"
    LIST = "a JSON list"
    PICKLE = "a pickle"
    PARQUET = "parquet"
    SQLITE = "SQLite"
    MARKUP = "markup"


class Inputs(NamedTuple):
    """What there is to read."""

    path: Path
    """What the user named."""
    files: Mapping[InputFormat, Sequence[InputFile]]
    limits: Sequence[Limit]
    """What is said of files beside those of the reader."""
    scratch: Scratch
    reading: Reading | None


Mark = Callable[[InputFile, bytes], bool]
"""Tells whether a file with this head has the format; the container is known already."""


def _keys(*patterns: bytes) -> Mark:
    """Return a mark: all of these are in the head."""
    compiled = tuple(map(re.compile, patterns))
    return lambda _, head: all(pattern.search(head) for pattern in compiled)


def _begins(pattern: re.Pattern[bytes]) -> Mark:
    return lambda _, head: pattern.match(head) is not None


def _is_ndtimeline(file: InputFile, _: bytes) -> bool:
    import pyarrow.parquet as pq

    from .ndtimeline.columns import NDTIMELINE_COLUMNS

    try:
        return set(pq.read_schema(file.path).names) >= NDTIMELINE_COLUMNS
    except (pa.ArrowException, OSError):
        return False


def _is_nsight(file: InputFile, head: bytes) -> bool:
    """Return whether an SQLite file has tables of Nsight Systems.

    The list of tables is asked for, as it may be anywhere in the file; where it cannot be
    read, the first bytes decide, so that a damaged export is called damaged.
    """
    if file.is_packed():
        return _NSIGHT_TABLE.search(head) is not None
    uri = f"{file.path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True)
    except DAMAGED_SQLITE:
        return False
    try:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except DAMAGED_SQLITE:
        return _NSIGHT_TABLE.search(head) is not None
    finally:
        connection.close()
    return any(_NSIGHT_TABLE.match(str(name).encode()) for (name,) in names)


_is_snapshot = _keys(rb"segments", rb"total_size|device_traces")


def _is_dump(file: InputFile, head: bytes) -> bool:
    """Return whether it is a ring of collectives; a snapshot of memory may name them too."""
    return _DUMP_KEY.search(head) is not None and not _is_snapshot(file, head)


def _ndtimeline(inputs: Inputs) -> Trace:
    from .ndtimeline.importer import import_ndtimeline

    return import_ndtimeline(
        inputs.path, inputs.files[InputFormat.NDTIMELINE], limits=inputs.limits
    )


def _kineto(inputs: Inputs) -> Trace:
    """Read Kineto traces: those of several ranks in one file apart, and halves of events joined."""
    from .kineto.chrome_pairs import complete_pairs
    from .kineto.importer import import_kineto
    from .kineto.merged import split_merged

    paired, alone = complete_pairs(inputs.files[InputFormat.KINETO], inputs.scratch)
    parts, merged = split_merged(paired, inputs.scratch)
    limits = [*inputs.limits, *alone, *merged]
    return import_kineto(inputs.path, parts, limits=limits, reading=inputs.reading)


def _nsight(inputs: Inputs) -> Trace:
    from .nsight.importer import import_nsight

    return import_nsight(inputs.path, inputs.files[InputFormat.NSIGHT], limits=inputs.limits)


def _pipeline_visualiser(inputs: Inputs) -> Trace:
    from .pipeline_visualiser.importer import import_pipeline_visualiser

    dumps = inputs.files[InputFormat.PIPELINE_VISUALISER]
    configs = inputs.files[InputFormat.PIPELINE_CONFIG]
    return import_pipeline_visualiser(inputs.path, dumps, configs, limits=inputs.limits)


def _nccl_inspector(inputs: Inputs) -> Trace:
    from .nccl_inspector.importer import import_nccl_inspector

    logs = inputs.files[InputFormat.NCCL_INSPECTOR]
    return import_nccl_inspector(inputs.path, logs, limits=inputs.limits)


def _flight_recorder(inputs: Inputs) -> Trace:
    from .flight_recorder.importer import import_flight_recorder

    rings = inputs.files[InputFormat.FLIGHT_RECORDER]
    return import_flight_recorder(inputs.path, rings, limits=inputs.limits)


def _memory(inputs: Inputs) -> Trace:
    from .memory.importer import import_memory

    records = [(file, kind) for kind in _OF_MEMORY for file in inputs.files[kind]]
    return import_memory(inputs.path, records, limits=inputs.limits)


_OF_MEMORY = (
    InputFormat.MEMORY_SNAPSHOT,
    InputFormat.MEMORY_EVENTS,
    InputFormat.MEMORY_SIZES,
)
"""Of one rank each, in the order in which they are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format.

    Attributes:
        name: As its users call it.
        marks: How it is recognised, by the container of its files.
        read: Reads all files of it; None for files that only belong to another format.
        beside: Formats that ``read`` takes too.
        is_timeline: It tells what a job did over time; two of them apart are two jobs.
    """

    kind: InputFormat
    name: str
    marks: Mapping[Container, Mark]
    read: Callable[[Inputs], Trace] | None = None
    beside: tuple[InputFormat, ...] = ()
    is_timeline: bool = False


FORMATS = (
    Format(
        kind=InputFormat.NDTIMELINE, name="NDTimeline", is_timeline=True, read=_ndtimeline,
        marks={Container.PARQUET: _is_ndtimeline},
    ),
    Format(
        kind=InputFormat.KINETO, name="Kineto", is_timeline=True, read=_kineto,
        marks={
            Container.OBJECT: _keys(
                rb'"(?:traceEvents|schemaVersion|distributedInfo|deviceProperties|baseTimeNanoseconds)"\s*:'
            ),
            Container.LIST: _keys(rb'"ph"\s*:\s*"[XBE]"'),
        },
    ),
    Format(
        kind=InputFormat.NSIGHT, name="Nsight Systems", is_timeline=True, read=_nsight,
        marks={Container.SQLITE: _is_nsight},
    ),
    Format(
        kind=InputFormat.PIPELINE_VISUALISER, name="pipeline visualiser", is_timeline=True,
        read=_pipeline_visualiser, beside=(InputFormat.PIPELINE_CONFIG,),
        marks={Container.OBJECT: _keys(rb'"fwd_start"\s*:\s*\[')},
    ),
    Format(
        kind=InputFormat.PIPELINE_CONFIG, name="settings of a pipeline",
        marks={
            Container.OBJECT: _keys(rb'"pp_size"\s*:', rb'"(?:num_mbs|micro_batches)"\s*:')
        },
    ),
    Format(
        kind=InputFormat.NCCL_INSPECTOR, name="NCCL Inspector", read=_nccl_inspector,
        marks={Container.OBJECT: _keys(rb'"dump_timestamp_us"\s*:')},
    ),
    Format(
        kind=InputFormat.FLIGHT_RECORDER, name="flight recorder", read=_flight_recorder,
        marks={Container.OBJECT: _is_dump, Container.PICKLE: _is_dump},
    ),
    Format(
        kind=InputFormat.MEMORY_SNAPSHOT, name="memory snapshot", read=_memory, beside=_OF_MEMORY,
        marks={Container.OBJECT: _is_snapshot, Container.PICKLE: _is_snapshot},
    ),
    Format(
        kind=InputFormat.MEMORY_EVENTS, name="memory timeline", read=_memory, beside=_OF_MEMORY,
        marks={Container.LIST: _begins(_TIMELINE_EVENTS)},
    ),
    Format(
        kind=InputFormat.MEMORY_SIZES, name="memory timeline", read=_memory, beside=_OF_MEMORY,
        marks={Container.LIST: _begins(_TIMELINE_SIZES)},
    ),
    Format(
        kind=InputFormat.MEMORY_PAGE, name="page of memory",
        marks={
            Container.MARKUP: _keys(rb"(?i)GPU Memory Timeline HTML|MemoryViz\.js|memory_viz")
        },
    ),
)  # fmt: skip
"""In the order in which marks are tried, and in which one format is read where there are several."""
