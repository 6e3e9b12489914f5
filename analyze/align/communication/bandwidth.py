"""Bandwidth of matched collectives and transfers, and their distribution over message sizes.

The conventions are those of the NCCL tests (PERFORMANCE.md): the algorithm bandwidth is
message size over time; the bus bandwidth is that times a factor which makes numbers of
different operations and group sizes comparable with the speed of the links. Time is the
wire time; size is the output for all-gather and the input otherwise; both bandwidths are
in bytes per second.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import CollectiveKind

SEND_RECEIVE = "send_recv"
"""How a send with its receive is called beside the kinds of collectives."""

_TURNS = {
    CollectiveKind.ALL_REDUCE.value: 2,
    CollectiveKind.ALL_GATHER.value: 1,
    CollectiveKind.REDUCE_SCATTER.value: 1,
    CollectiveKind.ALL_TO_ALL.value: 1,
    CollectiveKind.GATHER.value: 1,
    CollectiveKind.SCATTER.value: 1,
}
"""Factor is turns x (n-1)/n."""
_WHOLE = (CollectiveKind.BROADCAST.value, CollectiveKind.REDUCE.value, SEND_RECEIVE)
"""Factor is 1."""
_REASONS = (
    ("no_kind", "the operation has no bandwidth"),
    ("no_size", "the message size is not known"),
    ("no_group", "the number of members is not known"),
    ("alone", "the group has one member"),
    ("no_wire", "fewer than two members, or no ends, are in the capture"),
    ("no_time", "it took no measurable time"),
)
"""Why a bandwidth is unknown; the first that holds is given."""


def bus_factor(kind: str, members: int) -> float | None:
    """Return the factor from algorithm to bus bandwidth, None where there is none.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if kind in _WHOLE:
        return 1.0
    turns = _TURNS.get(kind)
    return None if turns is None or members < 1 else turns * (members - 1) / members


def with_bandwidth(table: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives with both bandwidths and why they are unknown.

    Args:
        table: kind, size_bytes (0 unknown), expected (members of the group, 0 unknown),
            wire_ns (NA unknown).

    Returns:
        The same with algorithm_bandwidth_bytes_per_s and bus_bandwidth_bytes_per_s (NA
        where unknown) and bandwidth_unknown_because (None where known).
    """
    pairs = table[["kind", "expected"]].drop_duplicates()
    factors = {(kind, size): bus_factor(kind, size) for kind, size in pairs.itertuples(index=False)}
    factor = pd.Series(
        [factors[pair] for pair in zip(table["kind"], table["expected"], strict=True)],
        index=table.index,
        dtype="Float64",
    )
    wire_s = table["wire_ns"].astype("Float64") / 1e9
    holds = {
        "no_kind": ~table["kind"].isin([*_TURNS, *_WHOLE]),
        "no_size": table["size_bytes"] <= 0,
        "no_group": table["expected"] < 1,
        "alone": table["expected"] == 1,
        "no_wire": wire_s.isna(),
        "no_time": (wire_s <= 0).fillna(value=False),
    }
    why = np.select(
        [holds[name].to_numpy(dtype=bool) for name, _ in _REASONS],
        [text for _, text in _REASONS],
        default="",
    )
    known = pd.Series(why == "", index=table.index)
    algorithm = (table["size_bytes"].astype("Float64") / wire_s.where(wire_s > 0)).where(known)
    return table.assign(
        algorithm_bandwidth_bytes_per_s=algorithm,
        bus_bandwidth_bytes_per_s=algorithm * factor,
        bandwidth_unknown_because=pd.Series(why, index=table.index).where(~known, None),
    )


def size_buckets(collectives: pd.DataFrame, transfers: pd.DataFrame) -> pd.DataFrame:
    """Return the distribution of wire time and bandwidth over message sizes.

    A bucket holds the sizes from a power of two up to the next one; those of unknown size
    are a bucket of their own. Sends with their receives are of the kind ``send_recv``.

    Args:
        collectives: As ``with_bandwidth`` returns them, with their axis.
        transfers: Sends joined with receives: axis, size_bytes, wire_ns.

    Returns:
        One row per axis, kind and bucket: axis, kind, size_from_bytes, size_below_bytes
        (NA where sizes are unknown), count, total_bytes, wire_p50_ns, wire_p95_ns,
        algorithm_bandwidth_p50_bytes_per_s, bus_bandwidth_p50_bytes_per_s (NA: unknown).
    """
    sent = with_bandwidth(
        transfers[["axis", "size_bytes", "wire_ns"]].assign(kind=SEND_RECEIVE, expected=2)
    )
    rows = pd.concat(
        [part[list(_BUCKET_INPUT)] for part in (collectives, sent) if len(part)]
        or [collectives[list(_BUCKET_INPUT)]],
        ignore_index=True,
    )
    size = rows["size_bytes"].to_numpy(np.int64)
    power = np.frexp(np.maximum(size, 1).astype(np.float64))[1] - 1
    rows["size_from_bytes"] = pd.array(np.where(size > 0, 1 << power, 0), dtype="Int64")
    by_bucket = rows.groupby(["axis", "kind", "size_from_bytes"], sort=True)
    wire = rows["wire_ns"].astype("Float64").groupby([rows[name] for name in _BUCKET])
    table = pd.DataFrame(
        {
            "count": by_bucket.size(),
            "total_bytes": by_bucket["size_bytes"].sum(),
            "wire_p50_ns": wire.quantile(0.5),
            "wire_p95_ns": wire.quantile(0.95),
            "algorithm_bandwidth_p50_bytes_per_s": by_bucket[
                "algorithm_bandwidth_bytes_per_s"
            ].median(),
            "bus_bandwidth_p50_bytes_per_s": by_bucket["bus_bandwidth_bytes_per_s"].median(),
        }
    ).reset_index()
    is_known = table["size_from_bytes"] > 0
    table["size_from_bytes"] = table["size_from_bytes"].where(is_known)
    table.insert(3, "size_below_bytes", table["size_from_bytes"] * 2)
    table["total_bytes"] = table["total_bytes"].astype("Int64").where(is_known)
    return table


_BUCKET = ("axis", "kind", "size_from_bytes")
_BUCKET_INPUT = (
    "axis",
    "kind",
    "size_bytes",
    "wire_ns",
    "algorithm_bandwidth_bytes_per_s",
    "bus_bandwidth_bytes_per_s",
)
