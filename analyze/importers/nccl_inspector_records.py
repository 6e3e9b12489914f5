"""Lines of the NCCL Inspector as rows of one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pandas as pd

from meshscope.probe.schema.errors import TraceFormatError

from .detect import DAMAGED_JSON, InputFile

_NS_PER_US = 1000
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
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
    pid: int = -1


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


def read_records(files: Sequence[InputFile], notes: list[str]) -> pd.DataFrame:
    """Return one row per collective of a member; what is left out is added to ``notes``.

    Returns:
        host, pid, comm, comm_name, comm_rank, members, coll, number, part_bytes,
        dur_ns, written_ns, timing, line (position in the input).
    """
    rows: list[dict[str, object]] = []
    damaged = other = 0
    for file in files:
        try:
            lines = file.read().splitlines()
        except TraceFormatError as error:
            notes.append(f"Left out: {error}.")
            continue
        for text in lines:
            if not text.strip():
                continue
            try:
                line = _DECODER.decode(text)
            except DAMAGED_JSON:
                damaged += 1
                continue
            if line.coll_perf is None or line.header.rank >= line.header.n_ranks:
                other += 1
            else:
                rows.append(_row(line, line.coll_perf, len(rows)))
    if damaged:
        notes.append(f"{damaged} lines are torn or no records, and are left out.")
    if other:
        notes.append(f"{other} records are of sends, receives or unknown kinds, and are left out.")
    return pd.DataFrame(rows)


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
