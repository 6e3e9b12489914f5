"""Lines of the NCCL Inspector as rows of one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pandas as pd

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.limits import Limit
from ...wording.message import message
from ..byte_source import ByteSource
from ..file_limits import left_out_files
from ..files import DAMAGED_JSON, InputFile

_NS_PER_US = 1000
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
_Process = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 40)]
_Members = Annotated[int, msgspec.Meta(ge=1, lt=1 << 20)]


class _Header(msgspec.Struct):
    """The communicator, and the place of the writer in it."""

    id: str | int
    rank: _Count
    n_ranks: _Members
    comm_name: str | None = None


class _Metadata(msgspec.Struct):
    """Who wrote the line, and when (Unix time)."""

    dump_timestamp_us: Annotated[int, msgspec.Meta(ge=0, lt=4_600_000_000_000_000)]
    hostname: str = ""
    pid: _Process = -1


class _Performance(msgspec.Struct):
    """One collective on one member."""

    coll: str
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
    coll_timing_source: str = ""


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Performance | None = None
    p2p_perf: Any = None


_DECODER = msgspec.json.Decoder(_Line)
_BLOCK_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 1 << 20
"""A file with a longer line is left out; a record has about 500 bytes."""
MOST_RECORDS = 1_000_000
"""Later records are counted and left out, so that memory is bounded."""


@dataclass(slots=True)
class _Left:
    """Lines that are not in the table."""

    damaged: int = 0
    other: int = 0
    too_many: int = 0


def read_records(files: Sequence[InputFile], notes: list[Limit]) -> pd.DataFrame:
    """Return one row per collective of a member; what is left out is added to ``notes``.

    Returns:
        host, pid, comm, comm_name, comm_rank, members, coll, number, part_bytes,
        dur_ns, written_ns, timing, line (position in the input).
    """
    rows: list[dict[str, object]] = []
    left = _Left()
    for file in files:
        try:
            rows += _rows(file, len(rows), left, notes)
        except TraceFormatError as error:
            notes += left_out_files([error])
    if left.damaged:
        notes.append(message("missing.torn_lines", count=left.damaged))
    if left.other:
        notes.append(message("missing.other_records", count=left.other))
    if left.too_many:
        notes.append(message("missing.too_many_records", count=left.too_many, most=MOST_RECORDS))
    return pd.DataFrame(rows)


def _rows(file: InputFile, before: int, left: _Left, notes: list[Limit]) -> list[dict[str, object]]:
    """Return the rows of one file.

    Raises:
        TraceFormatError: It cannot be opened, its compressed stream is damaged, or a line is
            of absurd length.
    """
    rows: list[dict[str, object]] = []
    for text in _lines(file, notes):
        try:
            line = _DECODER.decode(text)
        except DAMAGED_JSON:
            left.damaged += 1
            continue
        if line.coll_perf is None or line.header.rank >= line.header.n_ranks:
            left.other += 1
        elif before + len(rows) >= MOST_RECORDS:
            left.too_many += 1
        else:
            rows.append(_row(line, line.coll_perf, before + len(rows)))
    return rows


def _lines(file: InputFile, notes: list[Limit]) -> Iterator[bytes]:
    """Yield the lines that hold anything, of which one block is in memory at a time."""
    try:
        with ByteSource(file) as source:
            rest = b""
            while block := source.read(_BLOCK_BYTES):
                *whole, rest = (rest + block).split(b"\n")
                yield from filter(bytes.strip, whole)
                if len(rest) > _LONGEST_LINE_BYTES:
                    raise TraceFormatError(
                        message("refused.long_line", most_bytes=_LONGEST_LINE_BYTES),
                        where=file.label,
                    )
            if rest.strip():
                yield rest
            if source.ends_early:
                notes.append(message("missing.cut_log", file=file.label))
    except OSError as error:
        raise TraceFormatError(
            message("refused.unreadable", error=error.strerror), where=file.label
        ) from error


def _row(line: _Line, perf: _Performance, place: int) -> dict[str, object]:
    return {
        "host": line.metadata.hostname,
        "pid": line.metadata.pid,
        "comm": str(line.header.id),
        "comm_name": line.header.comm_name or "",
        "comm_rank": line.header.rank,
        "members": line.header.n_ranks,
        "coll": perf.coll,
        "number": perf.coll_sn,
        "part_bytes": perf.coll_msg_size_bytes,
        "dur_ns": round(perf.coll_exec_time_us * _NS_PER_US),
        "written_ns": line.metadata.dump_timestamp_us * _NS_PER_US,
        "timing": perf.coll_timing_source,
        "line": place,
    }
