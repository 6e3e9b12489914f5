"""Ranks that get more tokens than the others of their expert group: popular experts.

A router sends tokens to the ranks that hold the experts, and their results come back by
a second all-to-all. What a rank sends there is what it had to work on, so members that
send different amounts show the load of their experts. A rank that works longer than its
peers by no more than its load explains is not slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Axis, CollectiveKind

UNEVEN = 1.05
"""An exchange tells loads where the most that a member sends is that many times the mean."""
MIN_LOAD = 1.1
"""From this ratio to the mean of the group on, averaged over all exchanges that tell loads."""
MIN_PART = 0.1
"""Least part of the exchanges that tell loads; a few odd ones are no popular expert."""
TOLERANCE = 1.1
"""How much longer a rank may work than its load explains; caches make more rows cheaper."""
MIN_STEPS = 4
"""Least number of steps in which a rank is slow, and in which it is not, that tell how its load changes."""
COLUMNS = ("rank", "group_id", "load", "load_over_others")


def expert_loads(events: pd.DataFrame) -> pd.DataFrame:
    """Return the load of each rank in each expert group whose exchanges are uneven.

    Args:
        events: The matched operations, one row a member.

    Returns:
        One row a rank and group: ``load``, what it sends over the mean of the group, and
        ``load_over_others``, over the mean of the other members (infinite where these send
        nothing).
    """
    return _loads(_all_to_alls(events))


def _loads(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the loads that the exchanges of experts tell."""
    uneven = rows[(rows["most"] > UNEVEN * rows["mean"])]
    keys = ["group_id", "rank"]
    part = uneven.groupby(keys, observed=True).size() / rows.groupby(keys, observed=True).size()
    sums = uneven.groupby(keys, observed=True).agg(sent=("size_bytes", "sum"), mean=("mean", "sum"))
    sums = sums[part.reindex(sums.index) >= MIN_PART]
    members = sums.groupby(level="group_id", observed=True)["sent"].transform("size")
    others = (
        sums.groupby(level="group_id", observed=True)["sent"].transform("sum") - sums["sent"]
    ) / (members - 1).where(members > 1)
    found = sums.assign(load=sums["sent"] / sums["mean"], load_over_others=sums["sent"] / others)
    return found.reset_index()[list(COLUMNS)]


def explained_by_experts(
    events: pd.DataFrame,
    slowdowns: Mapping[int, float],
    slow_steps: Mapping[int, Sequence[tuple[int, int]]] | None = None,
) -> dict[int, str]:
    """Return the expert group of each slow rank whose load explains that it is slow.

    Args:
        events: The matched operations.
        slowdowns: Work over that of the peers, by slow rank.
        slow_steps: The runs of steps in which each of them is slow, where that is known. One whose load
            is no higher in these than in the others is slow for another reason.
    """
    if not slowdowns or events.empty:
        return {}
    rows, runs = _all_to_alls(events), slow_steps or {}
    loads = _loads(rows)
    loads = loads[(loads["load"] >= MIN_LOAD) & loads["rank"].isin(list(slowdowns))]
    allowed = TOLERANCE * loads["load_over_others"]
    loads = loads[loads["rank"].map(dict(slowdowns)) <= allowed].sort_values("load")
    # Where a rank is in several groups, the one that loads it most.
    groups = loads["group_id"].astype(str)
    explained = dict(zip(loads["rank"].astype(int).tolist(), groups.tolist(), strict=True))
    return {
        rank: group
        for rank, group in explained.items()
        if _follows_load(rows[rows["rank"] == rank], runs.get(rank, ()))
    }


def _all_to_alls(events: pd.DataFrame) -> pd.DataFrame:
    """Return the all-to-alls of experts, with the mean and the most that their members send."""
    if Axis.EP.value not in events["axis"].astype("category").cat.categories:
        events = events[:0]
    exchange = (events["axis"] == Axis.EP.value) & ~events["is_p2p"] & (events["size_bytes"] >= 0)
    rows = events[exchange & (events["kind"] == CollectiveKind.ALL_TO_ALL.value)]
    size = rows.groupby("join")["size_bytes"]
    return rows.assign(mean=size.transform("mean"), most=size.transform("max"))


def _follows_load(rows: pd.DataFrame, runs: Sequence[tuple[int, int]]) -> bool:
    """Return whether a rank has more load in the steps in which it is slow; also where nothing tells."""
    step = rows["step"].to_numpy()
    slow = np.zeros(len(rows), dtype=bool)
    for first, last in runs:
        slow |= (step >= first) & (step <= last)
    if min(len(np.unique(step[slow])), len(np.unique(step[~slow]))) < MIN_STEPS:
        return True
    sums = rows[["size_bytes", "mean"]].groupby(slow).sum()
    load = sums["size_bytes"] / sums["mean"]
    return bool(load[True] > UNEVEN * load[False])
