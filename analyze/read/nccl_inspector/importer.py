"""Logs of the NCCL Inspector plugin: one JSON object per line and collective, as one Trace.

A line says how long a collective took on one member of a communicator and when
the line was written, not when the collective began. Members of a synchronising
collective leave it together, so one end is given to all of them, and who came last
is read off the durations alone. The numbering of ``coll_sn`` is one per
communicator and operation. Records name ranks inside communicators only; global ones follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import listed
from meshscope.probe.schema.tables import COLLECTIVE, GROUP, RUN, TABLES
from meshscope.probe.schema.terms import Axis, CaptureLevel, CollectiveKind, TimeSource

from ...wording.limits import Limit, limit_text
from ...wording.message import message
from ..files import InputFile
from ..kernel_names import collective_kind
from .records import read_records

PROCESS = ["host", "pid"]
"""What tells processes apart."""
_SHOWN = 4


def number_ranks(rows: pd.DataFrame, notes: list[Limit]) -> tuple[pd.DataFrame, int]:
    """Return the rows with the column ``rank``, and the size of the world.

    The numbering is that of the largest communicator in which every process is;
    where there is none, processes are numbered by host and process id. A process
    that is several members of one communicator keeps only the records of that one,
    because nothing says which of its members made another record.
    """
    rows = rows.assign(process=rows.groupby(PROCESS, sort=True).ngroup())
    world = _world(rows)
    places = rows.groupby(["process", "comm"])["comm_rank"].transform("nunique")
    is_single = places.groupby(rows["process"]).transform("max") == 1
    if world is None:
        notes.append(_by_process(rows))
        rank, size = rows["process"].where(is_single), int(rows["process"].nunique())
    else:
        in_world = rows["comm"] == world
        own = rows[in_world & is_single].drop_duplicates("process")
        by_process = rows["process"].map(own.set_index("process")["comm_rank"])
        rank = rows["comm_rank"].where(in_world, by_process)
        size = int(rows.loc[in_world, "members"].max())
        notes.append(message("assumed.ranks_of_communicator", communicator=world))
    lost = int(rank.isna().sum())
    if lost:
        notes.append(message("missing.records_of_several_ranks", count=lost))
    return rows[rank.notna()].assign(rank=rank.dropna().astype("int64")), size


def _world(rows: pd.DataFrame) -> str | None:
    """Return the communicator with the most members that every process is in."""
    comms = rows.groupby("comm", sort=True).agg(
        members=("members", "max"), processes=("process", "nunique")
    )
    whole = comms[comms["processes"] == rows["process"].nunique()]
    return None if whole.empty else str(whole["members"].idxmax())


def _by_process(rows: pd.DataFrame) -> Limit:
    known = rows.drop_duplicates("process").sort_values("process")
    processes = (f"{row.process} is {row.host} pid {row.pid}" for row in known.itertuples())
    return message("assumed.ranks_by_process", named=listed(processes, most=_SHOWN))


_SHARDED = (CollectiveKind.ALL_GATHER.value, CollectiveKind.REDUCE_SCATTER.value)
"""The log has the part of one member; the table has all of it."""
_HOST_TIMED = "collective_cpu"
_NO_STEP = -1


def import_nccl_inspector(
    path: Path, files: Sequence[InputFile], *, limits: Iterable[Limit]
) -> Trace:
    """Read the logs of a job, one of each process.

    Args:
        path: What the user named; it becomes the name of the run.
        files: Files recognised as logs of the Inspector.
        limits: What is already known to be missing.

    Raises:
        TraceFormatError: No line of any file is the record of a collective.
    """
    notes: list[Limit] = list(limits)
    rows = read_records(files, notes)
    if rows.empty:
        raise TraceFormatError(
            message("refused.no_collective"),
            where=str(path),
            remedy=" ".join(map(limit_text, notes)),
        )
    rows, world_size = number_ranks(rows, notes)
    collective = _collectives(rows, notes)
    group = _groups(rows, notes)
    tables = {name: spec.empty() for name, spec in TABLES.items()}
    for spec, frame in ((COLLECTIVE, collective), (GROUP, group)):
        tables[spec.name] = spec.conform(pa.Table.from_pandas(frame, preserve_index=False))
    known = {
        "run_id": path.stem if path.is_file() else path.name,
        "world_size": world_size,
        "capture_level": CaptureLevel.COLLECTIVES.value,
    }
    return Trace(
        path=path,
        run=dict.fromkeys(RUN.column_names()) | known,
        layout=None,
        ranks=tuple(sorted(set(rows["rank"].tolist()))),
        tables=tables,
        limits=tuple(notes),
        origin="nccl_inspector",
    )


def _collectives(rows: pd.DataFrame, notes: list[Limit]) -> pd.DataFrame:
    """Return one row per member; a collective that was written twice counts once."""
    rows = rows.sort_values(["written_ns", "line"], kind="stable")
    is_copy = rows.duplicated(["rank", "comm", "coll", "number"], keep="first")
    if is_copy.any():
        notes.append(message("assumed.written_again", count=int(is_copy.sum())))
    rows = rows[~is_copy].copy()
    rows["kind"] = rows["coll"].map(
        {name: collective_kind(name).value for name in set(rows["coll"])}
    )
    operations = {name: place for place, name in enumerate(sorted(set(rows["coll"])))}
    rows["seq"] = rows["number"] * len(operations) + rows["coll"].map(operations)
    rows["end_ns"] = rows.groupby(["comm", "seq"])["written_ns"].transform("min")
    rows["start_ns"] = rows["issue_ns"] = rows["end_ns"] - rows["dur_ns"]
    rows = rows.sort_values(["rank", "end_ns", "line"], kind="stable", ignore_index=True)
    rows["event_id"] = rows.groupby("rank").cumcount()
    is_part = rows["kind"].isin(_SHARDED)
    rows["size_bytes"] = rows["part_bytes"] * rows["members"].where(is_part, 1)
    notes.append(message("doubt.ends_of_log"))
    on_host = int((rows["timing"] == _HOST_TIMED).sum())
    if on_host:
        notes.append(message("doubt.timed_on_host", on_host=on_host, count=len(rows)))
    return rows.assign(
        step=_NO_STEP,
        group_id=rows["comm"],
        axis=Axis.OTHER.value,
        source=TimeSource.IMPORTED.value,
    )


def _groups(rows: pd.DataFrame, notes: list[Limit]) -> pd.DataFrame:
    members = rows.drop_duplicates(["comm", "rank"]).sort_values(["comm", "comm_rank"])
    by_comm = members.groupby("comm", sort=True)
    table = pd.DataFrame(
        {
            "ranks": by_comm["rank"].agg(list),
            "description": by_comm["comm_name"].first().replace("", None),
            "size": by_comm["members"].max(),
        }
    ).reset_index(names="group_id")
    partial = int((table["ranks"].map(len) < table["size"]).sum())
    if partial:
        notes.append(message("doubt.partial_communicators", partial=partial, count=len(table)))
    table["axis"] = Axis.OTHER.value
    table["evidence"] = None
    return table
