"""Bandwidth of matched collectives and transfers over message sizes, and the part of their time that size does not change.

The conventions are those of the NCCL tests (PERFORMANCE.md): the algorithm bandwidth is
message size over time; the bus bandwidth is that times a factor which makes numbers of
different operations and group sizes comparable with the speed of the links. Time is the
wire time; size is the output for all-gather and the input otherwise; both bandwidths are
in bytes per second.

A transfer of s bytes takes ``a + s / B`` (Hockney 1994): a is latency of the hops, launching and
synchronising, B the rate. Operations of one axis, kind and number of members share a and B; a is fitted
over the lower quartiles by size, since queueing behind other transfers is no part of it. Where they have
one size, a is only known to lie between 0 and what the smallest operation takes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.message import message_to_cell
from meshscope.probe.schema.terms import CollectiveKind

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.trace import Trace
from ...wording.message import message

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
_REASONS = {
    "no_kind": message("bandwidth.no_kind"),
    "no_size": message("bandwidth.no_size"),
    "no_group": message("bandwidth.no_group"),
    "alone": message("bandwidth.alone"),
    "no_wire": message("bandwidth.no_wire"),
    "no_time": message("bandwidth.no_time"),
}
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
        where unknown) and bandwidth_unknown_because (a cell of ``message_to_cell``; None where known).
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
        [holds[name].to_numpy(dtype=bool) for name in _REASONS],
        [message_to_cell(why) for why in _REASONS.values()],
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


KEY = ["axis", "kind", "members"]
LEAST_SPAN = 1.5
"""Largest over smallest size from which a line through the times is fitted."""
_LEAST_ERROR = 0.02
"""Share of a quartile that its error is taken as at least: the line is an idealisation."""
_MAD_TO_SD = 1.4826
_UNDISTURBED = 0.25
"""Quantile of the times of one size that counts: what queues behind others takes longer."""
_QUARTILE_TO_MEAN = 1.3626
"""Standard error of a quartile over that of a mean, of normal values."""


def group_sizes(trace: Trace, frame: pd.DataFrame) -> IntArray:
    """Return how many ranks the group of each event has, 2 for messages, 0 unknown."""
    group = trace.frame("group")
    size = dict(zip(group["group_id"].astype(str), group["ranks"].map(len), strict=True))
    names = frame["group_id"].cat
    found = np.array([*(size.get(str(name), 0) for name in names.categories), 0], dtype=np.int64)
    return np.where(frame["is_p2p"].to_numpy(bool), 2, found[names.codes.to_numpy()])


def transfer_table(frame: pd.DataFrame, members: IntArray) -> pd.DataFrame:
    """Return one row an operation whose size and time are known.

    Args:
        frame: Communication events.
        members: Of the group of each event.

    Returns:
        axis, kind (``send_recv`` for messages), members, size_bytes, wire_ns; the index is that of the
        event in the frame. A message's time is that of its receive. Where nobody saw when a collective
        ended, its time is what it added to the one before: an upper bound.
    """
    is_p2p = frame["is_p2p"].to_numpy(bool)
    table = pd.DataFrame(
        {
            "axis": frame["axis"].astype(str),
            "kind": np.where(is_p2p, SEND_RECEIVE, frame["kind"].astype(str)),
            "members": np.where(is_p2p, 2, members),
            "size_bytes": frame["size_bytes"],
            "wire_ns": _added_where_unknown(frame, is_p2p),
            "join": frame["join"],
        }
    )
    is_own = ~(is_p2p & frame["is_send"].to_numpy(bool))
    known = table[is_own & (table["size_bytes"] > 0) & (table["wire_ns"] > 0)]
    found: pd.DataFrame = known.drop_duplicates("join").drop(columns="join")
    return found


def _added_where_unknown(frame: pd.DataFrame, is_p2p: BoolArray) -> FloatArray:
    """Return wire times; of collectives without one, from the end of the one before to their own."""
    wire = frame["wire_ns"].to_numpy(np.float64)
    if not (np.isnan(wire) & ~is_p2p).any():
        return wire
    own = frame.loc[~is_p2p, ["join", "group_id", "start_ns", "end_ns"]]
    by_join = own.groupby("join").agg(
        group_id=("group_id", "first"), start_ns=("start_ns", "max"), end_ns=("end_ns", "min")
    )
    by_join = by_join.sort_values(["group_id", "start_ns"], kind="stable")
    before = by_join.groupby("group_id", observed=True)["end_ns"].shift()
    added = by_join["end_ns"] - np.fmax(by_join["start_ns"], before)
    bound = added.where(added > 0).reindex(frame["join"]).to_numpy(np.float64)
    return np.where(np.isnan(wire) & ~is_p2p, bound, wire)


def fixed_times(transfers: pd.DataFrame) -> pd.DataFrame:
    """Return the fixed time of each kind of operation, with its interval.

    Args:
        transfers: As ``transfer_table`` returns them.

    Returns:
        Index axis, kind, members; low_ns, fixed_ns, high_ns (two standard errors, within what the
        smallest operation takes), is_fitted.
    """
    by_size = transfers.groupby([*KEY, "size_bytes"])["wire_ns"]
    usual = pd.DataFrame({"wire_ns": by_size.quantile(_UNDISTURBED), "count": by_size.size()})
    middle = by_size.transform("median")
    keys = [transfers[name] for name in (*KEY, "size_bytes")]
    spread = (transfers["wire_ns"] - middle).abs().groupby(keys).median() * _MAD_TO_SD
    error = _QUARTILE_TO_MEAN * spread / np.sqrt(usual["count"])
    usual["error_ns"] = np.maximum(error, _LEAST_ERROR * usual["wire_ns"])
    found = {key: _fixed(rows.reset_index()) for key, rows in usual.groupby(level=KEY)}
    table = pd.DataFrame.from_dict(
        found, orient="index", columns=["low_ns", "fixed_ns", "high_ns", "is_fitted"]
    )
    table.index = pd.MultiIndex.from_tuples(list(found), names=KEY) if found else table.index
    least = usual.groupby(level=["axis", "members"])["wire_ns"].min()
    return _at_most_like(table, least)


def _fixed(rows: pd.DataFrame) -> tuple[float, float, float, bool]:
    """Return the fixed time of operations of one kind, from the quartiles by size."""
    size, wire, error = (
        rows[name].to_numpy(np.float64) for name in ("size_bytes", "wire_ns", "error_ns")
    )
    most = float(wire[0])
    if size[-1] < LEAST_SPAN * size[0]:
        return 0.0, most / 2, most, False
    fixed, own_error = _line(size, wire, error)
    low, high = (float(np.clip(fixed + way * 2 * own_error, 0.0, most)) for way in (-1, 1))
    return low, float(np.clip(fixed, 0.0, most)), high, True


def _line(size: FloatArray, wire: FloatArray, error: FloatArray) -> tuple[float, float]:
    """Return where a line through weighted points meets size 0, and the standard error of that."""
    weight = error**-2.0
    design = np.stack([np.ones(len(size)), size / size[-1]], axis=1)
    normal = design.T @ (design * weight[:, None])
    cover = np.linalg.inv(normal)
    fit = cover @ (design.T @ (weight * wire))
    if fit[1] < 0:  # Larger ones are no slower: all of the time is fixed.
        mean = float((weight * wire).sum() / weight.sum())
        return mean, float(weight.sum() ** -0.5)
    freedom = len(size) - 2
    misfit = float((weight * (wire - design @ fit) ** 2).sum()) / freedom if freedom else 1.0
    return float(fit[0]), float(np.sqrt(cover[0, 0] * max(1.0, misfit)))


def _at_most_like(table: pd.DataFrame, least: pd.Series) -> pd.DataFrame:
    """Bound fixed times that no line gives by the smallest operations of other kinds.

    An all-reduce is a reduce-scatter and an all-gather: its fixed time is at most that of two others.
    """
    if table.empty:
        return table
    axis, kind, members = (table.index.get_level_values(name) for name in KEY)
    times = np.where(kind == CollectiveKind.ALL_REDUCE.value, 2.0, 1.0)
    most = times * least.reindex(pd.MultiIndex.from_arrays([axis, members])).to_numpy()
    is_open = ~table["is_fitted"].to_numpy(bool)
    high = np.where(is_open, np.minimum(table["high_ns"], most), table["high_ns"])
    middle = np.where(is_open, high / 2, table["fixed_ns"])
    return table.assign(high_ns=high, fixed_ns=middle)


def time_of_event(table: pd.DataFrame, frame: pd.DataFrame, members: IntArray) -> pd.DataFrame:
    """Return low_ns, fixed_ns, high_ns of each event; NaN where nothing of its kind is known."""
    is_p2p = frame["is_p2p"].to_numpy(bool)
    keys = pd.MultiIndex.from_arrays(
        [
            frame["axis"].astype(str),
            np.where(is_p2p, SEND_RECEIVE, frame["kind"].astype(str)),
            np.where(is_p2p, 2, members),
        ],
        names=KEY,
    )
    columns = ["low_ns", "fixed_ns", "high_ns"]
    if table.empty:
        return pd.DataFrame(np.nan, index=range(len(frame)), columns=columns)
    return table[columns].reindex(keys).reset_index(drop=True)
