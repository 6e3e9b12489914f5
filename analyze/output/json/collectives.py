"""The JSON form of the collectives matched across ranks, and of the volumes expected of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from meshscope.probe.schema.terms import SYNCHRONISING

from ...account.detail_limits import not_one_by_one
from ...account.ledger.build import build_ledger
from ...account.ledger.overlap import overlaps
from ...account.links.ceiling import group_bandwidths
from ...account.links.use import link_use
from ...align.communication.bandwidth import size_buckets, with_bandwidth
from ...align.communication.events import CommunicationEvents, communication_events
from ...align.communication.matching import (
    CollectiveMatch,
    TransferMatch,
    match_collectives,
    match_p2p,
)
from ...align.steps.windows import StepWindows, step_windows
from ...explain.run_account import Account
from ...explain.volumes.compare import ExpectedSeen, VolumeRow, expected_and_seen
from ...explain.whatif.returns import transfer_returns
from ...findings.diagnosis import account_or_end
from ...findings.measure import NoStepsError
from ...tables.trace import Trace, knows_members
from ...wording.limits import limits_to_json
from ...wording.message import cells_to_json
from ...wording.words import is_missing
from .bandwidth import group_rows, overlap_rows, pair_matrix, transfer_returns_to_json
from .links import links_to_json


def expected_to_json(found: ExpectedSeen) -> dict[str, Any]:
    """Return the rows, what the formulas assume, or the code of what is unknown."""
    job = found.job
    return {
        "unknown": None if found.unknown is None else found.unknown.value,
        "assumed": None
        if job is None
        else {
            "zero": job.zero,
            "sequence_parallel": job.sequence_parallel,
            "recompute": job.recompute.value,
            "element_bytes": found.element_bytes,
            "element_bytes_recorded": found.has_type,
        },
        "rows": [_row(row) for row in found.rows],
    }


def _row(row: VolumeRow) -> dict[str, Any]:
    return {
        "axis": row.axis,
        "kind": row.kind,
        "expected_count_per_step": row.expected_count,
        "expected_bytes_per_step": round(row.expected_bytes),
        "seen_count_per_step": row.seen_count,
        "seen_bytes_per_step": round(row.seen_bytes),
        "element_bytes": row.element_bytes,
        "difference_frac": row.difference_frac,
        "reason": None if row.code is None else row.code.value,
        "reason_amount": row.amount,
        "steps_apart": list(row.steps_apart),
    }


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


def collectives_to_json(trace: Trace, account: Account | None = None) -> dict[str, Any]:
    """Return every collective matched across ranks, with who waited and who came last.

    Args:
        trace: The capture.
        account: Its account, where it was measured already.
    """
    match = match_collectives(trace)
    traffic = _communication(trace, match, account)
    pairs = pair_matrix(traffic["transfers"])
    return {**traffic, "collectives": list(_collectives(match)), "pairs": pairs}


def communication_to_json(trace: Trace, account: Account | None = None) -> dict[str, Any]:
    """Return the same without ``collectives`` and ``pairs``: of many ranks these are nearly all of it."""
    return _communication(trace, match_collectives(trace), account)


def _communication(trace: Trace, match: CollectiveMatch, account: Account | None) -> dict[str, Any]:
    sent, windows = match_p2p(trace), step_windows(trace)
    events = communication_events(trace, windows)
    return {
        "version": 1,
        "analysed_steps": _steps_of(windows),
        "groups": [
            {
                "group_id": str(row["group_id"]),
                "axis": row["axis"],
                "ranks": list(row["ranks"]) if knows_members(trace) else [],
                **cells_to_json(row, "evidence"),
            }
            for row in trace.frame("group").to_dict("records")
        ],
        "collective_count": len(match.collectives),
        "transfers": _transfers(sent),
        "sizes": _records(size_buckets(match.collectives, sent.transfers)),
        "expected": expected_to_json(expected_and_seen(trace, windows)),
        "bandwidths": group_rows(group_bandwidths(trace, match.collectives)),
        "overlap": _overlap(trace, windows, events),
        "changes": _changes(trace, account),
        "arrivals": _arrivals(match.collectives, ["axis", "kind"]),
        "arrivals_by_group": _arrivals_by_group(match.collectives),
        "links": links_to_json(link_use(trace, windows, events)),
        "ranks": _by_rank(match.members, trace.ranks, windows),
        **limits_to_json((*trace.limits, *not_one_by_one(trace), *match.limits, *sent.limits)),
    }


def _overlap(
    trace: Trace, windows: StepWindows, events: CommunicationEvents
) -> list[dict[str, Any]]:
    """Return the overlap by axis; nothing without step marks."""
    if not windows.has_marks or not len(events.frame):
        return []
    return overlap_rows(overlaps(events, build_ledger(trace, windows, events)))


def _changes(trace: Trace, measured: Account | None) -> list[dict[str, Any]]:
    """Return what other transfers would return; nothing where the run cannot be replayed."""
    try:
        account = measured or account_or_end(trace)
    except NoStepsError:
        return []
    if not isinstance(account, Account):
        return []
    return transfer_returns_to_json(transfer_returns(account), account.windows.step_time_ns)


def _arrivals(collectives: pd.DataFrame, keys: list[str]) -> list[dict[str, Any]]:
    """Return how far apart the members of collectives begin, by some of their columns."""
    return _records(_spreads(_with_spread(collectives), keys).reset_index())


def _arrivals_by_group(collectives: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the same by group and operation, and who came last most often; the widest first.

    ``decided`` counts the collectives of which somebody is known to have come last, alone.
    """
    known, keys = _with_spread(collectives), ["group_id", "axis", "kind"]
    traffic = known[known["last_rank"].notna()]
    times = traffic.groupby([*keys, "last_rank"]).size().rename("last_count").reset_index()
    times = times.sort_values(["last_count", "last_rank"], ascending=[False, True], kind="stable")
    table = _spreads(known, keys)
    table["decided"] = traffic.groupby(keys).size().reindex(table.index, fill_value=0)
    most = times.drop_duplicates(keys).set_index(keys)
    table = table.join(most[["last_rank", "last_count"]])
    table["last_count"] = table["last_count"].fillna(0).astype(int)
    order = ["spread_p95_ns", "count"]
    return _records(table.sort_values(order, ascending=False, kind="stable").reset_index())


def _with_spread(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives of which it is known how far apart their members begin, names as text.

    A lone member is 0 apart from itself, and always last: that says nothing.
    """
    spread = collectives["start_spread_ns"].astype("Float64").astype("float64")
    names = {name: collectives[name].astype(str) for name in ("group_id", "axis", "kind")}
    return collectives.assign(start_spread_ns=spread, **names)[
        (spread.notna() & (collectives["members"] > 1)).to_numpy()
    ]


def _spreads(known: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    by_kind = known.groupby(keys)["start_spread_ns"]
    return pd.DataFrame(
        {
            "count": by_kind.size(),
            "spread_p50_ns": by_kind.median(),
            "spread_p95_ns": by_kind.quantile(0.95),
            "spread_max_ns": by_kind.max(),
        }
    )


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
            **cells_to_json(row, "bandwidth_unknown_because"),
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
