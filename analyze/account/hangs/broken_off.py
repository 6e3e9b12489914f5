"""How far each rank came in each group, in a capture of ours that broke off."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from meshscope.probe.reader.rank_records import LastSeen
from meshscope.probe.schema.standstill_tables import NO_GROUP, PROGRESS

from .newest_attempt import newest_attempt
from .unrecorded_ranks import counted_collectives, unheard_ranks

_COLUMNS = ["rank", "group_id", "seq", "end_ns", "event_id"]


def progress_at_the_end(
    tables: Mapping[str, pa.Table],
    manifests: Mapping[int, Mapping[str, Any]],
    last_seen: Mapping[int, LastSeen],
) -> pa.Table:
    """Return the ``progress`` rows; none where every rank ended in order.

    A rank without a collective has one row of no group, for how long its process was there.
    What was complete is known only of ranks that ended in order, and of their last
    collective only if its end was seen or no other rank is behind it: an exception of a
    rank that has waited too long closes its capture too. A member without a row of a
    group has none: its rows may be lost, unless the first collective of the group was
    its only one, so that nothing could be lost. What a rank had issued whose communication
    was not recorded at the end is known where it noted what its backends had counted.

    Args:
        tables: Those of the capture.
        manifests: Manifests of the ranks that were read.
        last_seen: Until when their processes are known to have been there.
    """
    closed, ended_by = _ends(manifests, last_seen)
    if all(closed.values()) and not ended_by:
        return PROGRESS.empty()
    rows, sent = (
        _of_newest_attempt(table, manifests) for table in (tables["collective"], tables["p2p"])
    )
    last = rows.groupby(["group_id", "rank"])["seq"].max()
    summed = frozenset(tables["communication_sum"]["group_id"].to_pylist())
    never = _never_came(rows, set(sent["group_id"]), tables["group"], closed, summed)
    unheard = unheard_ranks(tables)
    counted = counted_collectives(tables, manifests, unheard)
    issued: dict[Any, int] = {**dict.fromkeys(never, -1), **last.to_dict(), **counted}
    in_order = {rank: closed[rank] and not ended_by.get(rank) for rank in closed}
    completed = _completed(rows, issued, in_order, unheard)
    # Of a rank without a collective it matters as well how long it was there, and how it ended.
    silent = [(NO_GROUP, rank) for rank in sorted({*closed} - {rank for _, rank in issued})]
    completed |= {key: -1 for key in silent if in_order[key[1]]}
    issued |= dict.fromkeys(silent)
    seen = [last_seen.get(rank, LastSeen()) for _, rank in issued]
    frame = pd.DataFrame(
        {
            "rank": [rank for _, rank in issued],
            "group_id": [group for group, _ in issued],
            "issued_seq": pd.array(
                [
                    None if key[1] in unheard and key not in counted else seq
                    for key, seq in issued.items()
                ],
                dtype="Int64",
            ),
            "completed_seq": pd.array([completed.get(key) for key in issued], dtype="Int64"),
            "alive_ns": pd.array([one.alive_ns for one in seen], dtype="Int64"),
            "ended_ns": pd.array([one.ended_ns for one in seen], dtype="Int64"),
            "wait_status": pd.array([one.wait_status for one in seen], dtype="Int64"),
            "ended_by": [ended_by.get(rank) for _, rank in issued],
        }
    )
    return PROGRESS.conform(pa.Table.from_pandas(frame, preserve_index=False))


def _ends(
    manifests: Mapping[int, Mapping[str, Any]], last_seen: Mapping[int, LastSeen]
) -> tuple[dict[int, bool], dict[int, str]]:
    """Return which ranks that recorded closed their capture, and the exceptions that ended ranks.

    Who catches Ctrl-C and calls ``sys.exit(130)`` closes its capture, and still breaks off.
    """
    closed = {
        rank: manifest.get("closed_unix_ns") is not None
        for rank, manifest in manifests.items()
        if newest_attempt(manifest).get("recorded", True)
    }
    ended_by = {
        rank: name
        for rank, manifest in manifests.items()
        if isinstance(name := manifest.get("ended_by"), str)
    }
    for rank, is_closed in closed.items():
        if is_closed and last_seen.get(rank, LastSeen()).wait_status:
            ended_by.setdefault(rank, SystemExit.__name__)
    return closed, ended_by


def _never_came(
    rows: pd.DataFrame,
    sending: set[str],
    groups: pa.Table,
    captured: Collection[int],
    summed: frozenset[str],
) -> list[tuple[str, int]]:
    """Return group and rank of captured members of which no collective there can have been lost."""
    numbers = rows.groupby("group_id")["seq"].agg(["min", "max"])
    only_one = set(numbers.index[numbers["min"] == numbers["max"]]) - summed
    nothing_lost = only_one | (sending - set(numbers.index))
    members = zip(groups["group_id"].to_pylist(), groups["ranks"].to_pylist(), strict=True)
    return [
        (group, rank)
        for group, ranks in members
        if group in nothing_lost
        for rank in ranks
        if rank in captured
    ]


def _completed(
    rows: pd.DataFrame,
    issued: Mapping[tuple[str, int], int],
    closed: Mapping[int, bool],
    unheard: frozenset[int],
) -> dict[tuple[str, int], int]:
    """Return the last collective that was complete on ranks that closed, by group and rank."""
    ended = rows[rows["end_ns"].notna()].groupby(["group_id", "rank"])["seq"].max().to_dict()
    slowest: dict[str, int] = {}
    for (group, rank), seq in issued.items():
        if not closed.get(rank, False) and rank not in unheard:
            slowest[group] = min(seq, slowest.get(group, seq))
    return {
        (group, rank): max(ended.get((group, rank), -1), min(seq, slowest.get(group, seq)))
        for (group, rank), seq in issued.items()
        if closed.get(rank, False)
    }


def _of_newest_attempt(table: pa.Table, manifests: Mapping[int, Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows of the newest attempt: what broke off before it has been taken up again."""
    if not table.num_rows:
        return pd.DataFrame(columns=_COLUMNS)
    rows: pd.DataFrame = table.select(_COLUMNS).to_pandas().astype({"group_id": str})
    first = {
        rank: newest.get("first_event_id", 0) if newest.get("recorded", True) else 1 << 62
        for rank, manifest in manifests.items()
        if (newest := newest_attempt(manifest))
    }
    return rows[rows["event_id"] >= rows["rank"].map(first).fillna(0)]
