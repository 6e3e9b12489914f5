"""Ranks with popular experts are distinguished from slow ones by what they send back."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.explain.causes.experts import expert_loads, explained_by_experts

STEPS = 10


def exchanges(sent_back, *, axis="ep", p2p=False):
    """Return all-to-alls of one group: what was dispatched is even, what comes back is not.

    Args:
        sent_back: Bytes of each rank in the second exchange of a step, by rank.
        axis: Axis of the group.
        p2p: Whether they are transfers.
    """
    rows = [
        {"rank": rank, "step": step, "join": 2 * step + back, "size_bytes": size}
        for step in range(STEPS)
        for back in (0, 1)
        for rank, size in (sent_back if back else dict.fromkeys(sent_back, 1000)).items()
    ]
    same = {"axis": axis, "kind": "all_to_all", "group_id": "e", "is_p2p": p2p}
    return pd.DataFrame(rows).assign(**same)


def test_the_load_is_what_a_rank_sends_back_over_the_mean():
    """The even dispatch would halve the load, and a popular expert look harmless."""
    loads = expert_loads(exchanges({0: 500, 1: 500, 2: 2000})).set_index("rank")
    assert loads["load"].to_dict() == {0: 0.5, 1: 0.5, 2: 2.0}
    assert loads.loc[2, "load_over_others"] == 4.0


@pytest.mark.parametrize(("slowdown", "explained"), [(1.2, True), (3.9, True), (4.6, False)])
def test_a_rank_slower_than_its_load_is_slow(slowdown, explained):
    """A bad device would hide behind a load that is a little above the mean."""
    found = explained_by_experts(exchanges({0: 500, 1: 500, 2: 2000}), {2: slowdown})
    assert found == ({2: "e"} if explained else {})


def test_a_rank_that_gets_all_tokens_is_explained():
    """The division by what the others send would fail, or name nobody."""
    assert explained_by_experts(exchanges({0: 0, 1: 2000}), {1: 9.0}) == {1: "e"}


@pytest.mark.parametrize(
    "events",
    [
        exchanges({0: 1000, 1: 1000}),
        exchanges({0: 1000, 1: 1040}),
        exchanges({0: 500, 1: 2000}, axis="dp"),
        exchanges({0: 500, 1: 2000}, p2p=True),
        exchanges({0: 500, 1: 2000}).iloc[:0],
    ],
    ids=["even", "nearly even", "another axis", "transfers", "none"],
)
def test_other_ranks_stay_suspected(events):
    """Slow ranks would be excused by experts that nobody prefers."""
    assert explained_by_experts(events, {1: 1.5}) == {}


def test_a_few_odd_exchanges_are_no_popular_expert():
    """One uneven step of a thousand would explain a rank that is always slow."""
    events = exchanges({0: 1000, 1: 1000})
    rare = (events["join"] == 1) & (events["rank"] == 1)
    events["size_bytes"] = np.where(rare, 5000, events["size_bytes"])
    assert explained_by_experts(events, {1: 1.5}) == {}


@pytest.mark.parametrize(
    ("hot", "slow", "explained"),
    [(range(10), [(3, 6)], False), (range(3, 7), [(3, 6)], True), (range(10), [(0, 7)], True)],
    ids=["always hot", "hot when slow", "too few other steps"],
)
def test_a_load_that_stays_explains_no_slow_down_that_comes_and_goes(hot, slow, explained):
    """A rank that stalls in some steps would be excused by the popular expert that it always has."""
    events = exchanges({0: 500, 1: 1500})
    events["size_bytes"] = np.where(events["step"].isin(hot), events["size_bytes"], 1000)
    found = explained_by_experts(events, {1: 1.5}, {1: slow})
    assert found == ({1: "e"} if explained else {})
