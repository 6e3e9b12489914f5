"""The part of a transfer's time that does not depend on its size.

A transfer of s bytes takes ``a + s / B`` (Hockney 1994): a is latency of the hops, launching and
synchronising, B the rate. Operations of one axis, kind and number of members share a and B; a is fitted
over the lower quartiles by size, since queueing behind other transfers is no part of it. Where they have
one size, a is only known to lie between 0 and what the smallest operation takes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import CollectiveKind

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.trace import Trace
from .bandwidth import SEND_RECEIVE

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
