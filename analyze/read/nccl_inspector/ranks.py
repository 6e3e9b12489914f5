"""Global ranks of NCCL Inspector records, which name ranks inside communicators only."""

from __future__ import annotations

import pandas as pd

from meshscope.probe.schema.printable import listed

from ...wording.limits import Limit
from ...wording.message import message

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
