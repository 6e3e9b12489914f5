"""The JSON form of the collectives matched across ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from ..capture.trace import Trace
from ..communication.bandwidth import size_buckets, with_bandwidth
from ..communication.matching import CollectiveMatch, TransferMatch, match_collectives, match_p2p
from ..communication.waiting import SYNCHRONISING
from ..detail_limits import not_one_by_one
from ..steps.windows import StepWindows, step_windows
from ..words import is_missing, sentence

_KEY = ["group_id", "seq"]
_OF_COLLECTIVE = (
    "group_id",
    "seq",
    "step",
    "axis",
    "kind",
    "size_bytes",
    "wire_ns",
    "last_rank",
    "start_spread_ns",
    "end_spread_ns",
    "algorithm_bandwidth_bytes_per_s",
    "bus_bandwidth_bytes_per_s",
    "bandwidth_unknown_because",
)


def collectives_to_json(trace: Trace) -> dict[str, Any]:
    """Return every collective matched across ranks, with who waited and who came last."""
    match, sent = match_collectives(trace), match_p2p(trace)
    windows = step_windows(trace)
    return {
        "version": 1,
        "analysed_steps": _steps_of(windows),
        "groups": [
            {
                "group_id": str(row["group_id"]),
                "axis": row["axis"],
                "ranks": list(row["ranks"]),
                "evidence": _known(row["evidence"]),
            }
            for row in trace.frame("group").to_dict("records")
        ],
        "collectives": list(_collectives(match)),
        "transfers": _transfers(sent),
        "sizes": _records(size_buckets(match.collectives, sent.transfers)),
        "ranks": _by_rank(match.members, trace.ranks, windows),
        "limits": list(
            map(sentence, (*trace.limits, *not_one_by_one(trace), *match.limits, *sent.limits))
        ),
    }


def _collectives(match: CollectiveMatch) -> Iterator[dict[str, Any]]:
    """Yield one entry a collective; a size of 0 is unknown, and stays 0 beside the reason."""
    waits: dict[tuple[str, int], dict[str, Any]] = {}
    members = match.members
    for group_id, seq, rank, wait in zip(
        *(members[name].tolist() for name in (*_KEY, "rank", "wait_ns")), strict=True
    ):
        waits.setdefault((group_id, seq), {})[str(rank)] = _known(wait)
    table = match.collectives
    for row in _records(table[[*_OF_COLLECTIVE, "members", "expected"]]):
        yield {
            **{name: row[name] for name in _OF_COLLECTIVE},
            "wait_ns": waits.get((row["group_id"], row["seq"]), {}),
            "members_present": row["members"],
            "members_expected": row["expected"] or None,
        }


def _steps_of(windows: StepWindows) -> int:
    """Return how many steps the account of the capture is made of; 0 without step marks."""
    return len(windows.steps) if windows.has_marks else 0


def _by_rank(
    members: pd.DataFrame, ranks: Sequence[int], windows: StepWindows
) -> dict[str, dict[str, Any]]:
    """Return the sums over the collectives that nobody can leave before all have come.

    ``wait_ns`` is the sum over the whole capture. ``wait_per_step_ns`` is of the steps that the
    account is made of: without those that are discarded, and null where there are none.

    The root of a broadcast leaves at once, and a group of one waits for nobody. A rank of
    which no wait is known has none: not 0.
    """
    kinds = [kind.value for kind in SYNCHRONISING]
    size = members.groupby(_KEY)["rank"].transform("size")
    rows = members[members["kind"].isin(kinds) & (size > 1)]
    nobody_last = ~rows.groupby(_KEY)["arrived_last"].transform("any")
    by_rank = rows.assign(undecided=nobody_last, unknown=rows["wait_ns"].isna()).groupby("rank")
    counts = by_rank.agg(
        arrived_last=("arrived_last", "sum"),
        count=("seq", "size"),
        undecided=("undecided", "sum"),
        unknown=("unknown", "sum"),
    )
    table = counts.reindex(sorted({*ranks, *counts.index}), fill_value=0)
    table.insert(0, "wait_ns", by_rank["wait_ns"].sum(min_count=1).reindex(table.index))
    steps = _steps_of(windows)
    in_steps = windows.select(rows).groupby("rank")["wait_ns"].sum(min_count=1)
    table.insert(1, "wait_per_step_ns", in_steps.reindex(table.index) / steps if steps else None)
    table["arrived_last_frac"] = table["arrived_last"] / table["count"]
    return {str(rank): row for rank, row in zip(table.index.tolist(), _records(table), strict=True)}


def _transfers(sent: TransferMatch) -> list[dict[str, Any]]:
    """Return the sends with their receives by group and pair of ranks, source to target."""
    pairs = with_bandwidth(sent.transfers.assign(kind="send_recv", expected=2))
    rows = pairs.groupby(["group_id", "axis", "source", "target"], as_index=False).agg(
        count=("seq", "size"),
        total_bytes=("size_bytes", "sum"),
        wire_p50_ns=("wire_ns", "median"),
        send_wait_ns=("send_wait_ns", "sum"),
        receive_wait_ns=("receive_wait_ns", "sum"),
        bus_bandwidth_p50_bytes_per_s=("bus_bandwidth_bytes_per_s", "median"),
    )
    return _records(rows)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table with missing values as None, which JSON has."""
    columns = [[_known(value) for value in table[name].tolist()] for name in table.columns]
    return [dict(zip(table.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def _known(value: Any) -> Any:
    """Return None for pandas' missing value, which JSON does not have."""
    return None if is_missing(value) else value
