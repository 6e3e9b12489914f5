"""The formats that are read: for each its mark in a file, its name, and its reader.

A new one is a folder of this package and a record of ``FORMATS``.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from ..tables.trace import Trace
from ..wording.limits import Limit
from .files import DAMAGED_SQLITE, InputFile
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
    files: Sequence[InputFile]
    """Those of the format."""
    beside: Mapping[str, Sequence[InputFile]]
    """Those of the formats that it takes too, by their kind."""
    limits: Sequence[Limit]
    """What is said of files beside those of the reader."""
    scratch: Scratch
    reading: Reading | None


_EVENT = re.compile(rb'"ph"\s*:\s*"[XBE]"')
LIST_OF_TRACES = re.compile(rb'\s*\[\s*\{(?:(?!"ph"\s*:)[\s\S])*?"traceEvents"\s*:\s*\[')
"""How a list begins of which each item is a whole trace."""
Mark = Callable[[InputFile, bytes], bool]
"""Tells whether a file with this head has the format; the container is known already."""


def _keys(*patterns: bytes) -> Mark:
    """Return a mark: all of these are in the head."""
    compiled = tuple(map(re.compile, patterns))
    return lambda _, head: all(pattern.search(head) for pattern in compiled)


def _begins(pattern: re.Pattern[bytes]) -> Mark:
    return lambda _, head: pattern.match(head) is not None


def _is_event_list(_: InputFile, head: bytes) -> bool:
    return _EVENT.search(head) is not None and LIST_OF_TRACES.match(head) is None


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
    # nvprof names its tables of activities alike, and keeps its texts in another one.
    is_nvprof = ("StringTable",) in names
    return not is_nvprof and any(_NSIGHT_TABLE.match(str(name).encode()) for (name,) in names)


_has_segments = _keys(rb"segments", rb"total_size|device_traces")
_lists_segments = _keys(rb"segment_type", rb"total_size")


def _is_snapshot(file: InputFile, head: bytes) -> bool:
    """Return whether it is a snapshot of memory, or its segments alone, as ``torch.cuda.memory_snapshot`` gives."""
    return _has_segments(file, head) or _lists_segments(file, head)


def _is_dump(file: InputFile, head: bytes) -> bool:
    """Return whether it is a ring of collectives; a snapshot of memory may name them too."""
    return _DUMP_KEY.search(head) is not None and not _is_snapshot(file, head)


def _ndtimeline(inputs: Inputs) -> Trace:
    from .ndtimeline.importer import import_ndtimeline

    return import_ndtimeline(inputs.path, inputs.files, limits=inputs.limits)


def _kineto(inputs: Inputs) -> Trace:
    """Read Kineto traces: those of several ranks in one file apart, and halves of events joined."""
    from .kineto.ascend import with_ascend_launches
    from .kineto.chrome_pairs import complete_pairs
    from .kineto.importer import import_kineto
    from .kineto.merged import split_merged
    from .kineto.unitrace import with_launches

    paired, alone = complete_pairs(inputs.files, inputs.scratch)
    launched = with_ascend_launches(with_launches(paired, inputs.scratch), inputs.scratch)
    parts, merged = split_merged(launched, inputs.scratch)
    limits = [*inputs.limits, *alone, *merged]
    return import_kineto(inputs.path, parts, limits=limits, reading=inputs.reading)


def _nsight(inputs: Inputs) -> Trace:
    from .nsight.importer import import_nsight

    return import_nsight(inputs.path, inputs.files, limits=inputs.limits)


def _pipeline_visualiser(inputs: Inputs) -> Trace:
    from .pipeline_visualiser.importer import import_pipeline_visualiser

    configs = inputs.beside["pipeline_config"]
    return import_pipeline_visualiser(inputs.path, inputs.files, configs, limits=inputs.limits)


def _nccl_inspector(inputs: Inputs) -> Trace:
    from .nccl_inspector.importer import import_nccl_inspector

    return import_nccl_inspector(inputs.path, inputs.files, limits=inputs.limits)


def _flight_recorder(inputs: Inputs) -> Trace:
    from .flight_recorder.importer import import_flight_recorder

    return import_flight_recorder(inputs.path, inputs.files, limits=inputs.limits)


def _memory(inputs: Inputs) -> Trace:
    from .memory.importer import import_memory

    records = [(file, kind) for kind, files in inputs.beside.items() for file in files]
    return import_memory(inputs.path, records, limits=inputs.limits)


_OF_MEMORY = ("memory_snapshot", "memory_events", "memory_sizes")
"""Of one rank each, in the order in which they are read."""


MEMORY_PAGE = "memory_page"
"""Kind of pages that show memory, which another export of the profiler replaces."""
NDTIMELINE = "ndtimeline"
"""Kind of the jobs that the published straggler metrics are for."""
ARCHIVE, UNKNOWN = "archive", "unknown"
"""Kinds of files that have no reader."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format.

    Attributes:
        kind: What the program calls it.
        name: As its users call it.
        marks: How it is recognised, by the container of its files.
        read: Reads all files of it; None for files that only belong to another format.
        beside: Formats that ``read`` takes too.
        is_timeline: It tells what a job did over time; two of them apart are two jobs.
        asked: What an error asks for where nothing can be read.
    """

    kind: str
    name: str
    marks: Mapping[Container, Mark]
    read: Callable[[Inputs], Trace] | None = None
    beside: tuple[str, ...] = ()
    is_timeline: bool = False
    asked: str = ""


FORMATS = (
    Format(
        kind=NDTIMELINE, name="NDTimeline", is_timeline=True, read=_ndtimeline,
        asked="NDTimeline parquet",
        marks={Container.PARQUET: _is_ndtimeline},
    ),
    Format(
        kind="kineto", name="Kineto", is_timeline=True, read=_kineto,
        asked="Kineto traces of the PyTorch profiler (.json)",
        marks={
            Container.OBJECT: _keys(
                rb'"(?:traceEvents|schemaVersion|distributedInfo|deviceProperties|baseTimeNanoseconds)"\s*:'
            ),
            Container.LIST: _is_event_list,
        },
    ),
    Format(
        kind="nsight", name="Nsight Systems", is_timeline=True, read=_nsight,
        asked="SQLite exports of Nsight Systems",
        marks={Container.SQLITE: _is_nsight},
    ),
    Format(
        kind="pipeline_visualiser", name="pipeline visualiser", is_timeline=True,
        asked="pipeline visualiser dumps",
        read=_pipeline_visualiser, beside=("pipeline_config",),
        marks={Container.OBJECT: _keys(rb'"fwd_start"\s*:\s*\[')},
    ),
    Format(
        kind="pipeline_config", name="settings of a pipeline",
        marks={
            Container.OBJECT: _keys(rb'"pp_size"\s*:', rb'"(?:num_mbs|micro_batches)"\s*:')
        },
    ),
    Format(
        kind="nccl_inspector", name="NCCL Inspector", read=_nccl_inspector,
        asked="NCCL Inspector logs",
        marks={Container.OBJECT: _keys(rb'"dump_timestamp_us"\s*:')},
    ),
    Format(
        kind="flight_recorder", name="flight recorder", read=_flight_recorder,
        asked="PyTorch flight recorder dumps",
        marks={Container.OBJECT: _is_dump, Container.PICKLE: _is_dump},
    ),
    Format(
        kind="memory_snapshot", name="memory snapshot", read=_memory, beside=_OF_MEMORY,
        asked="PyTorch memory snapshots",
        marks={Container.OBJECT: _is_snapshot, Container.PICKLE: _is_snapshot},
    ),
    Format(
        kind="memory_events", name="memory timeline", read=_memory, beside=_OF_MEMORY,
        asked="PyTorch memory timelines (raw.json.gz)",
        marks={Container.LIST: _begins(_TIMELINE_EVENTS)},
    ),
    Format(
        kind="memory_sizes", name="memory timeline", read=_memory, beside=_OF_MEMORY,
        marks={Container.LIST: _begins(_TIMELINE_SIZES)},
    ),
    # A picture, no numbers.
    Format(
        kind=MEMORY_PAGE, name="page of memory",
        marks={
            Container.MARKUP: _keys(rb"(?i)GPU Memory Timeline HTML|MemoryViz\.js|memory_viz")
        },
    ),
)  # fmt: skip
"""In the order in which marks are tried, and in which one format is read where there are several."""
