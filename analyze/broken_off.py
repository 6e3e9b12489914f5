"""How far each rank came in each group, in a capture of ours that broke off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.rank_records import LastSeen
from meshscope.probe.schema.tables import PROGRESS


def progress_at_the_end(
    collectives: pa.Table,
    groups: pa.Table,
    manifests: Mapping[int, Mapping[str, Any]],
    last_seen: Mapping[int, LastSeen],
    *,
    summed: frozenset[str] = frozenset(),
) -> pa.Table:
    """Return the ``progress`` rows; none where every rank has a close mark.

    What was complete is known only of ranks that ended in order, and of their last
    collective only if its end was seen or no other rank is behind it: an exception of a
    rank that has waited too long closes its capture too. A member without a row of a
    group has none: its rows may be lost, unless the first collective of the group was
    its only one, so that nothing could be lost.

    Args:
        collectives: The ``collective`` table.
        groups: The ``group`` table.
        manifests: Manifests of the ranks that were read.
        last_seen: Until when their processes are known to have been there.
        summed: Groups of whose collectives only sums are left of some steps.
    """
    closed = {
        rank: manifest.get("closed_unix_ns") is not None
        for rank, manifest in manifests.items()
        if _newest_attempt(manifest).get("recorded", True)
    }
    if all(closed.values()) or not collectives.num_rows:
        return PROGRESS.empty()
    rows = collectives.select(["rank", "group_id", "seq", "end_ns", "event_id"]).to_pandas()
    rows = _of_newest_attempt(rows, manifests).astype({"group_id": str})
    if rows.empty:
        return PROGRESS.empty()
    last = rows.groupby(["group_id", "rank"])["seq"].max()
    first = rows.groupby("group_id")["seq"].agg(["min", "max"])
    only_one = set(first.index[first["min"] == first["max"]]) - summed
    never = [
        (group, rank)
        for group, ranks in zip(
            groups["group_id"].to_pylist(), groups["ranks"].to_pylist(), strict=True
        )
        if group in only_one
        for rank in ranks
        if rank in closed and (group, rank) not in last.index
    ]
    issued: dict[Any, int] = {**last.to_dict(), **dict.fromkeys(never, -1)}
    completed = _completed(rows, issued, closed)
    seen = [last_seen.get(rank, LastSeen()) for _, rank in issued]
    frame = pd.DataFrame(
        {
            "rank": [rank for _, rank in issued],
            "group_id": [group for group, _ in issued],
            "issued_seq": list(issued.values()),
            "completed_seq": pd.array([completed.get(key) for key in issued], dtype="Int64"),
            "alive_ns": pd.array([one.alive_ns for one in seen], dtype="Int64"),
            "ended_ns": pd.array([one.ended_ns for one in seen], dtype="Int64"),
        }
    )
    return PROGRESS.conform(pa.Table.from_pandas(frame, preserve_index=False))


def _completed(
    rows: pd.DataFrame, issued: Mapping[tuple[str, int], int], closed: Mapping[int, bool]
) -> dict[tuple[str, int], int]:
    """Return the last collective that was complete on each closed rank, by group and rank."""
    ended = rows[rows["end_ns"].notna()].groupby(["group_id", "rank"])["seq"].max().to_dict()
    slowest: dict[str, int] = {}
    for (group, rank), seq in issued.items():
        if not closed.get(rank, False):
            slowest[group] = min(seq, slowest.get(group, seq))
    return {
        (group, rank): max(ended.get((group, rank), -1), min(seq, slowest.get(group, seq)))
        for (group, rank), seq in issued.items()
        if closed.get(rank, False)
    }


def _newest_attempt(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return where the newest attempt of the job begins on a rank; {} where there was one only."""
    found = manifest.get("newest_attempt")
    return found if isinstance(found, dict) else {}


def _of_newest_attempt(
    rows: pd.DataFrame, manifests: Mapping[int, Mapping[str, Any]]
) -> pd.DataFrame:
    """Return the rows of the newest attempt: what broke off before it has been taken up again."""
    first = {
        rank: newest.get("first_event_id", 0) if newest.get("recorded", True) else 1 << 62
        for rank, manifest in manifests.items()
        if (newest := _newest_attempt(manifest))
    }
    if not first:
        return rows
    return rows[rows["event_id"] >= rows["rank"].map(first).fillna(0)]
