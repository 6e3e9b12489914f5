"""The JSON form of the collectives matched across ranks."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..matching import match_collectives
from ..trace import Trace
from ..waiting import SYNCHRONISING
from ..words import is_missing, sentence


def collectives_to_json(trace: Trace) -> dict[str, Any]:
    """Return every collective matched across ranks, with who waited and who came last."""
    match = match_collectives(trace)
    waits: dict[tuple[str, int], dict[str, Any]] = {}
    members = match.members
    for group_id, seq, rank, wait in zip(
        *(members[name].tolist() for name in ("group_id", "seq", "rank", "wait_ns")), strict=True
    ):
        waits.setdefault((group_id, seq), {})[str(rank)] = _known(wait)
    rows = match.collectives.to_dict("records")
    return {
        "version": 1,
        "groups": [
            {"group_id": str(row["group_id"]), "axis": row["axis"], "ranks": list(row["ranks"])}
            for row in trace.frame("group").to_dict("records")
        ],
        "collectives": [
            {
                **{name: row[name] for name in ("group_id", "seq", "kind", "size_bytes")},
                "wire_ns": _known(row["wire_ns"]),
                "wait_ns": waits.get((row["group_id"], row["seq"]), {}),
                "last_rank": _known(row["last_rank"]),
                "bus_bandwidth_bytes_per_s": _known(row["bus_bandwidth_bytes_per_s"]),
            }
            for row in rows
        ],
        "ranks": _by_rank(members),
        "limits": list(map(sentence, (*trace.limits, *match.limits))),
    }


def _by_rank(members: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the sums over the collectives that nobody can leave before all have come.

    The root of a broadcast leaves at once, and a group of one waits for nobody.
    """
    kinds = [kind.value for kind in SYNCHRONISING]
    size = members.groupby(["group_id", "seq"])["rank"].transform("size")
    rows = members[members["kind"].isin(kinds) & (size > 1)].groupby("rank")
    table = rows.agg(
        wait_ns=("wait_ns", "sum"), arrived_last=("arrived_last", "sum"), count=("seq", "size")
    )
    return {str(rank): row for rank, row in _rows(table).items()}


def _rows(table: pd.DataFrame) -> dict[Any, dict[str, Any]]:
    """Return the rows of a frame by their index."""
    rows: Any = table.to_dict("index")
    found: dict[Any, dict[str, Any]] = rows
    return found


def _known(value: Any) -> Any:
    """Return None for pandas' missing value, which JSON does not have."""
    return None if is_missing(value) else value
