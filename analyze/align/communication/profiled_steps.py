"""Steps of profilers that are the same step, though their numbers differ.

The profiler of a rank numbers steps from where it began. Where one began a step later, or counts from 0
where another counts from 1, equal numbers are different steps, and every rank seems to wait for one that
is not there::

    rank 0    ProfilerStep#9   ProfilerStep#10   ProfilerStep#11
    rank 1    ProfilerStep#10  ProfilerStep#11   ProfilerStep#12     by -1

Two things tell which steps belong together. A sequence number that the job itself gave is the same on all
members. And members leave a collective at one time: where its ends lie together, or keep one distance from
each other as those of two clocks do, it is one collective. Both need the same operations in the same steps.
Ranks of which neither tells it, or of which they tell different things, keep their numbers.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SYNCHRONISING, Direction

from ...tables.trace import Trace
from ..steps.same_step import (
    LEAST_AGREEING,
    LEAST_OPERATIONS,
    agreeing_offsets,
    joined_by_ties,
    with_shifts,
)
from .realignment import SAME_SIZE

FAR_LESS = 0.1
"""What is left at the right numbers, of the distance of ends or of its scatter at any others."""
LEAST_SHARED = 0.5
"""Share of the steps of the rank that has fewer which two ranks must have in common."""
_LEFT_TOGETHER = [kind.value for kind in SYNCHRONISING]
_PAIR = ["base", "rank"]


def with_paired_numbers(trace: Trace) -> Trace:
    """Return the trace with equal numbers for the steps in which ranks communicated with each other.

    Most ranks keep their numbers, unless a number would be negative.
    """
    if not trace.capabilities.profiler_counts_steps or len(trace.ranks) < 2:
        return trace
    rows = _operations(trace)
    if rows["rank"].nunique() < 2:
        return trace
    shift = joined_by_ties(_ties(rows, _steps(trace)))
    if not any(shift.values()):
        return trace
    usual = Counter(shift.get(rank, 0) for rank in trace.ranks).most_common(1)[0][0]
    moved = {rank: shift.get(rank, 0) - usual for rank in trace.ranks}
    first = trace.frame("step").groupby("rank")["step"].min()
    below = int((first + first.index.map(moved)).min())
    return with_shifts(trace, {rank: by - min(below, 0) for rank, by in moved.items()})


def _operations(trace: Trace) -> pd.DataFrame:
    """Return the operations in steps, each with what its partners know it by.

    Returns:
        lane (the group, or the pair of a transfer), rank, step, what (kind, and size where members must
        state one), nth (of its like in the step of the rank), seq (-1 where the job gave none), end_ns
        (NA where members need not leave together), base (lowest rank of the lane).
    """
    rows = pd.concat([_collectives(trace), _transfers(trace)], ignore_index=True)
    has_steps = rows["rank"].isin(trace.frame("step")["rank"])
    rows = rows[(rows["step"] >= 0) & has_steps].sort_values(["rank", "start_ns"], kind="stable")
    for name in ("lane", "what"):
        rows[name] = pd.factorize(rows[name])[0]
    rows["nth"] = rows.groupby(["rank", "step", "lane", "what"]).cumcount()
    rows["base"] = rows.groupby("lane")["rank"].transform("min")
    return rows.drop(columns="start_ns")


def _collectives(trace: Trace) -> pd.DataFrame:
    rows = trace.frame("collective")
    group, kind = rows["group_id"].astype(str), rows["kind"].astype(str)
    size = rows["size_bytes"].where(kind.isin(SAME_SIZE), -1)
    # Positions that were counted begin at 0 on every rank; those that the job gave do so only at its begin.
    first = rows.groupby([group, rows["rank"]])["seq"].min().groupby(level=0).max()
    return pd.DataFrame(
        {
            "lane": group,
            "rank": rows["rank"].astype(np.int64),
            "step": rows["step"].astype(np.int64),
            "what": kind + " " + size.astype(str),
            "seq": rows["seq"].where(group.map(first) > 0, -1).astype(np.int64),
            "start_ns": rows["start_ns"],
            "end_ns": rows["end_ns"].astype("Int64").where(kind.isin(_LEFT_TOGETHER)),
        }
    )


def _transfers(trace: Trace) -> pd.DataFrame:
    rows = trace.frame("p2p")
    rows = rows[rows["peer"] >= 0]
    sends = rows["direction"].astype(str) == Direction.SEND.value
    source, target = (rows["rank"].where(own, rows["peer"]).astype(str) for own in (sends, ~sends))
    return pd.DataFrame(
        {
            "lane": rows["group_id"].astype(str) + " " + source + "->" + target,
            "rank": rows["rank"].astype(np.int64),
            "step": rows["step"].astype(np.int64),
            "what": "transfer " + rows["size_bytes"].astype(str),
            "seq": -1,
            "start_ns": rows["start_ns"],
            "end_ns": rows["end_ns"].astype("Int64"),
        }
    )


_Ranks = tuple[int, int]
"""A base and a rank."""


class _Steps(NamedTuple):
    """The steps of each rank, and how long they are."""

    of: dict[int, frozenset[int]]
    length_ns: dict[int, float]


def _steps(trace: Trace) -> _Steps:
    by_rank = trace.frame("step").groupby("rank")
    return _Steps(
        {int(str(rank)): frozenset(own["step"].tolist()) for rank, own in by_rank},
        {int(str(rank)): float(own["dur_ns"].median()) for rank, own in by_rank},
    )


def _ties(rows: pd.DataFrame, steps: _Steps) -> pd.DataFrame:
    """Return base, rank and diff of the pairs of ranks of which it is known."""
    stated = _stated(rows)
    unshifted = _compared(rows, 0)
    near = {
        at: apart_ns < FAR_LESS * steps.length_ns[at[0]]
        for at, apart_ns in zip(_pairs(unshifted), unshifted["apart_ns"].tolist(), strict=True)
    }
    found: dict[_Ranks, int] = {}
    doubted: dict[_Ranks, list[int]] = {}
    for base, rank in _pairs(rows[rows["rank"] != rows["base"]]):
        if near.get((base, rank)) and not stated.get((base, rank)):
            found[base, rank] = 0
        else:
            doubted[base, rank] = _possible(steps.of[base], steps.of[rank])
    found |= _timed(rows, doubted, steps.length_ns)
    for at in found.keys() & stated.keys():
        if found[at] != stated[at]:
            del found[at], stated[at]
    ties = [(*at, by) for at, by in {**stated, **found}.items()]
    return pd.DataFrame(ties, columns=[*_PAIR, "diff"])


def _pairs(rows: pd.DataFrame) -> list[_Ranks]:
    """Return the different pairs of base and rank, in order."""
    return list(rows[_PAIR].drop_duplicates().itertuples(index=False, name=None))


def _possible(base: frozenset[int], rank: frozenset[int]) -> list[int]:
    """Return by how much the numbers of a rank may differ: enough steps are then in common."""
    least = max(1, LEAST_SHARED * min(len(base), len(rank)))
    differences = range(min(base) - max(rank), max(base) - min(rank) + 1)
    return [by for by in differences if len(base & {step + by for step in rank}) >= least]


def _stated(rows: pd.DataFrame) -> dict[_Ranks, int]:
    """Return by how much numbers of steps differ by the sequence numbers of the job."""
    own = rows[rows["seq"] >= 0].drop_duplicates(["lane", "seq", "rank"]).sort_values("rank")
    first = own.groupby(["lane", "seq"])[["rank", "step", "what"]].transform("first")
    alike = (own["what"] == first["what"]).groupby([first["rank"], own["rank"]]).transform("mean")
    own = own.assign(base=first["rank"], base_step=first["step"])[alike >= LEAST_AGREEING]
    return {
        (int(base), int(rank)): int(by)
        for base, rank, by in agreeing_offsets(own).itertuples(index=False, name=None)
    }


def _timed(
    rows: pd.DataFrame, doubted: dict[_Ranks, list[int]], length_ns: dict[int, float]
) -> dict[_Ranks, int]:
    """Return by how much numbers of steps differ by when members left, where that is plain."""
    if not doubted:
        return {}
    is_doubted = pd.MultiIndex.from_frame(rows[_PAIR]).isin([*doubted])
    rows = rows[(rows["rank"] == rows["base"]) | is_doubted]
    every = sorted({by for own in doubted.values() for by in own})
    tried = pd.concat([_compared(rows, by).assign(diff=by) for by in every])
    found = {}
    for at, own in ((at, _of_pair(tried, at)) for at in _pairs(tried)):
        by = _plainest(own[own["diff"].isin(doubted[at])], length_ns[at[0]])
        if by is not None:
            found[at] = by
    return found


def _of_pair(rows: pd.DataFrame, at: _Ranks) -> pd.DataFrame:
    return rows[(rows["base"] == at[0]) & (rows["rank"] == at[1])]


def _plainest(tried: pd.DataFrame, length_ns: float) -> int | None:
    """Return the difference at which ends lie together, or keep their distance; None if that is not plain.

    Args:
        tried: diff, apart_ns and scatter_ns.
        length_ns: How long a step is.
    """
    if tried.empty:
        return None
    diff, apart, scatter = (tried[name].to_numpy() for name in ("diff", "apart_ns", "scatter_ns"))
    told: set[int] = set()
    nearest, steadiest = int(apart.argmin()), int(scatter.argmin())
    others = min(np.delete(apart, nearest).min(initial=np.inf), length_ns)
    is_steadier = scatter[nearest] <= scatter[diff == 0].min(initial=np.inf)
    if apart[nearest] < FAR_LESS * others and is_steadier:
        told.add(int(diff[nearest]))
    # Of one difference alone nothing says how much ends scatter at a wrong one.
    if len(tried) > 1 and scatter[steadiest] < FAR_LESS * np.delete(scatter, steadiest).min():
        told.add(int(diff[steadiest]))
    return told.pop() if len(told) == 1 else None


def _compared(rows: pd.DataFrame, by: int) -> pd.DataFrame:
    """Return how far apart partners left what they did in the same steps, if numbers differ so.

    Args:
        rows: Operations.
        by: What is added to the numbers of every rank that is not the base.

    Returns:
        base and rank of those that did the same in these steps, apart_ns (median distance of ends) and
        scatter_ns (median deviation from the median difference).
    """
    key = ["lane", "step", "what", "nth"]
    base = rows.loc[rows["rank"] == rows["base"], [*key, "end_ns"]]
    other = rows.loc[rows["rank"] != rows["base"], [*_PAIR, *key, "end_ns"]]
    other = other.assign(step=other["step"] + by)
    shared = base[["lane", "step"]].drop_duplicates()
    pairs = other.merge(shared, on=["lane", "step"]).merge(
        base, on=key, how="left", suffixes=("", "_base"), indicator="found"
    )
    is_alike = pairs["found"] == "both"
    ahead = (pairs["end_ns"] - pairs["end_ns_base"]).astype("Float64")
    pairs = pairs[_PAIR].assign(alike=is_alike, ahead=ahead.fillna(np.nan).astype(np.float64))
    usual = pairs.groupby(_PAIR)["ahead"].transform("median")
    pairs = pairs.assign(apart=pairs["ahead"].abs(), scatter=(pairs["ahead"] - usual).abs())
    found = pairs.groupby(_PAIR, as_index=False).agg(
        apart_ns=("apart", "median"),
        scatter_ns=("scatter", "median"),
        count=("ahead", "count"),
        alike=("alike", "mean"),
    )
    is_enough = (found["count"] >= LEAST_OPERATIONS) & (found["alike"] >= LEAST_AGREEING)
    return found.loc[is_enough, [*_PAIR, "apart_ns", "scatter_ns"]]
