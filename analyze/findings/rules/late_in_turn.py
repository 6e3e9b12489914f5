"""Ranks that are late in turn: each at its own operations, the same ones in every step, which is no chance."""

from __future__ import annotations

import pandas as pd

from ...wording.message import Message, message

LEAST_STEPS = 3
STEADY = 0.9
"""Share of the steps in which one rank is the last at a place, from which on it always is."""
OF_WAIT = 0.8
"""Share of the waiting that comes from such places, from which on lateness is no chance."""


def late_in_turn(events: pd.DataFrame) -> list[Message]:
    """Return which ranks are always last at how many operations of a step; empty where that explains little.

    Worked example: two ranks, two operations in each of three steps, the last rank of each.

    ==== ============ ============
    step operation 1  operation 2
    ==== ============ ============
    1    rank 0       rank 1
    2    rank 0       rank 1
    3    rank 0       rank 1
    ==== ============ ============

    Args:
        events: Communication of the analysed steps: rank, step, join, start_ns, is_p2p. Steps with
            another number of operations than most are left out.
    """
    is_joint = ~events["is_p2p"] & (events["join"] >= 0)
    own = events.loc[is_joint, ["rank", "step", "join", "start_ns"]]
    if own.empty:
        return []
    by_join = own.groupby(["step", "join"])["start_ns"]
    last = own.loc[by_join.idxmax()].set_index(["step", "join"])
    waited = (by_join.transform("max") - own["start_ns"]).groupby([own["step"], own["join"]]).sum()
    table = pd.DataFrame(
        {"rank": last["rank"], "begun": by_join.min(), "waited": waited}
    ).reset_index()
    table = table.sort_values(["step", "begun"])
    table["place"] = table.groupby("step").cumcount()
    counts = table.groupby("step")["place"].size()
    alike = counts.index[counts == counts.mode().iloc[0]]
    table = table[table["step"].isin(alike)]
    total = float(table["waited"].sum())
    if len(alike) < LEAST_STEPS or total <= 0:
        return []
    shares = table.groupby("place")["rank"].value_counts(normalize=True)
    usual = shares[shares >= STEADY].reset_index("rank")["rank"]
    is_usual = table["place"].map(usual) == table["rank"]
    by_rank = table[is_usual].groupby("rank")["waited"].sum() / total
    if by_rank.sum() < OF_WAIT or by_rank.max() > OF_WAIT:
        return []
    places = usual[usual.isin(by_rank.index[by_rank >= (1 - OF_WAIT) / 2])].value_counts()
    return [
        message("jitter.last_at", rank=int(str(rank)), count=int(count))
        for rank, count in places.sort_index().items()
    ]
