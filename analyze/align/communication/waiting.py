"""Who waited and who was waited for, from matched collectives.

Only collectives that nobody can leave before the last member has come are
counted (all-reduce, all-gather, reduce-scatter, all-to-all, barrier): a broadcast
lets its root go at once, and says nothing about arrivals.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SYNCHRONISING

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.numbering import numbered
from ...tables.sorting import greatest_of_group, ranks_of_group
from .events import CommunicationEvents

_TIMES = (
    *("rank", "join", "host", "wire_ns"),
    *("start_ns", "end_ns", "wait_start_ns", "split_ns"),
)
"""What of an operation says who waited in it."""
_WAITS = ("wait_ns", "early_ns", "wait_caused_ns")


def waits_by_rank(events: CommunicationEvents, ranks: list[int]) -> pd.DataFrame:
    """Return one row a rank over all analysed steps.

    Returns:
        rank, wait_ns (standing still before the transfer, summed), early_ns (last arrival less
        own, summed: the same wait on a common clock), wait_caused_ns (what the
        other members of the collectives that it arrived last at waited),
        arrived_last, collectives (that it took part in with at least one peer),
        chance (bound on the probability that a rank like the others is last so often).
        The waits are NaN where no such collective was recorded, or no end of one is known.
    """
    every = _rows(events.frame, _is_synchronising(events.frame), _TIMES)
    if every.empty:
        return _no_waits(ranks).assign(**dict.fromkeys(_WAITS, np.nan))
    ended = every["end_ns"].notna().to_numpy()
    frame = every if ended.all() else every[ended]
    ranks_of = ranks_of_group(frame["rank"].to_numpy(), frame["join"].to_numpy())
    frame = frame if (ranks_of > 1).all() else frame[ranks_of > 1]
    timed = frame.loc[frame["wire_ns"].notna(), "rank"]
    unseen = np.setdiff1d(every.loc[every["wire_ns"].isna(), "rank"], timed)
    table = _waits(frame, ranks) if len(frame) else _no_waits(ranks)
    table.loc[table["rank"].isin(unseen), list(_WAITS)] = np.nan
    return table


def arrivals(events: CommunicationEvents) -> pd.DataFrame:
    """Return how late each member of each collective comes that nobody leaves before the last is there.

    Returns:
        rank, step, join, late_ns: less than nothing by what the member stood waiting, 0 for the last one.
    """
    known = _is_synchronising(events.frame) & events.frame["wire_ns"].notna().to_numpy()
    frame = _rows(events.frame, known, ("step", *_TIMES))
    return frame[["rank", "step", "join"]].assign(late_ns=-stood_waiting(frame))


def _rows(frame: pd.DataFrame, chosen: BoolArray, names: tuple[str, ...]) -> pd.DataFrame:
    """Return some columns of the chosen rows, numbered anew."""
    row = np.flatnonzero(chosen)
    return pd.DataFrame({name: frame[name].to_numpy()[row] for name in names}, copy=False)


def _is_synchronising(frame: pd.DataFrame) -> BoolArray:
    """Return which events are collectives that nobody leaves before the last is there."""
    kinds = [kind.value for kind in SYNCHRONISING]
    known = frame["kind"].astype("category").cat
    return np.append(known.categories.isin(kinds), False)[known.codes.to_numpy()]


def _waits(frame: pd.DataFrame, ranks: list[int]) -> pd.DataFrame:
    """Return the table of ``waits_by_rank`` from rows whose ends and peers are known."""
    wait = stood_waiting(frame)
    last = last_arrivals(frame)
    caused = wait.groupby(frame["join"]).sum().reindex(last.index)
    by_rank = wait.groupby(frame["rank"]).agg(["sum", "size"])
    latest = greatest_of_group(frame["start_ns"].to_numpy(), frame["join"].to_numpy())
    early = latest - frame["start_ns"]
    table = pd.DataFrame({"rank": ranks})
    table["wait_ns"] = table["rank"].map(by_rank["sum"]).fillna(0.0)
    table["early_ns"] = table["rank"].map(early.groupby(frame["rank"]).sum()).fillna(0.0)
    blamed = pd.Series(caused.to_numpy(), index=last.to_numpy()).groupby(level=0).sum()
    table["wait_caused_ns"] = table["rank"].map(blamed).fillna(0.0)
    table["arrived_last"] = table["rank"].map(last.value_counts()).fillna(0).astype(np.int64)
    table["collectives"] = table["rank"].map(by_rank["size"]).fillna(0).astype(np.int64)
    fair = (1.0 / frame.groupby("join")["rank"].transform("size")).groupby(frame["rank"]).sum()
    expected = table["rank"].map(fair).fillna(0.0)
    table["chance"] = chance_of_as_many(
        table["arrived_last"].to_numpy(), table["collectives"].to_numpy(), expected.to_numpy()
    )
    return table


def chance_of_as_many(hits: IntArray, count: IntArray, expected: FloatArray) -> FloatArray:
    """Return a bound on the probability of at least that many hits by chance.

    Chernoff's bound of the binomial tail, exp(-n KL(k/n || p)) for k/n > p, with p
    the mean chance of a hit; 1 where there are no more hits than expected.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share, fair = hits / count, expected / count
        hit = np.where(share > 0, share * np.log(share / fair), 0.0)
        miss = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - fair)), 0.0)
        return np.asarray(np.where(share > fair, np.exp(-count * (hit + miss)), 1.0))


def stood_waiting(frame: pd.DataFrame) -> pd.Series:
    """Return how long each member waited for others before the transfer began.

    On a host clock from where it began to wait: what it computed between issue and
    wait was not waiting.
    """
    begin = frame["start_ns"].where(~frame["host"], frame["wait_start_ns"])
    return (frame["split_ns"] - begin).clip(lower=0).fillna(0.0)


def last_arrivals(frame: pd.DataFrame) -> pd.Series:
    """Return who arrived last at each operation, without those where two came together."""
    start = frame["start_ns"].to_numpy()
    last = frame[start == greatest_of_group(start, frame["join"].to_numpy())]
    alone = last.groupby("join")["rank"].transform("size") == 1
    found: pd.Series = last[alone].set_index("join")["rank"]
    return found


def _no_waits(ranks: list[int]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "rank": ranks,
            "wait_ns": 0.0,
            "early_ns": 0.0,
            "wait_caused_ns": 0.0,
            "arrived_last": 0,
            "collectives": 0,
            "chance": 1.0,
        }
    )


def traffic_by_group(
    events: CommunicationEvents, trace_groups: pd.DataFrame, steps: int
) -> pd.DataFrame:
    """Return one row a process group: operations, wire and wait per step, bytes per step.

    ``wire_ns`` sums the wire time of the operations, ``wait_ns`` the waiting of
    all members (rank-seconds: it is not a share of the step). Both are NaN where they are
    not known of any operation of the group.
    """
    frame, is_inferred = events.frame, events.frame["is_inferred"]
    if is_inferred.any():
        frame = frame[~is_inferred]
    columns = ["group_id", "axis", "ranks", "operations", "wire_ns", "wait_ns", "size_bytes"]
    if frame.empty:
        return pd.DataFrame(columns=columns)
    members = dict(zip(trace_groups["group_id"].astype(str), trace_groups["ranks"], strict=True))
    # An operation is of one group.
    own = numbered(frame["join"].to_numpy(), np.asarray(frame["axis"].cat.codes, np.int64))
    most = {
        name: greatest_of_group(frame[name].to_numpy(), own) for name in ("wire_ns", "size_bytes")
    }
    first = np.zeros(int(own.max()) + 1, np.int64)
    first[own[::-1]] = np.arange(len(own))[::-1]
    first = first[np.argsort(frame["join"].to_numpy()[first], kind="stable")]
    per_join = frame[["group_id", "axis", "join"]].iloc[first]
    per_join = per_join.assign(**{name: value[first] for name, value in most.items()})
    is_timed = frame["wire_ns"].notna()
    wait = stood_waiting(frame).where(is_timed).groupby(frame["group_id"], observed=True)
    groups = per_join.groupby(["group_id", "axis"], as_index=False, observed=True)
    table = groups.agg(operations=("join", "size"), size_bytes=("size_bytes", "sum"))
    table["wire_ns"] = groups["wire_ns"].sum(min_count=1)["wire_ns"]
    table = table.astype({"group_id": object, "axis": object})
    table["wait_ns"] = table["group_id"].map(wait.sum(min_count=1)).astype("float64")
    table["ranks"] = [list(members.get(group, [])) for group in table["group_id"]]
    for column in ("operations", "wire_ns", "wait_ns", "size_bytes"):
        table[column] = table[column] / steps
    return table[columns]
