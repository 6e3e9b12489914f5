"""Slow groups and links are distinguished from their like, also where they are slow at times."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.explain.causes.degraded import degraded_places
from meshscope.analyze.explain.causes.like_wires import like_size

STEPS = 20


def transfers(factors, *, sizes=None, seed=1, cv=0.05, steps=STEPS):
    """Return dp all-reduces of some groups, two a step, slower by {group: factor of a step}."""
    random = np.random.default_rng(seed)
    rows = [
        {
            "step": step,
            "group_id": group,
            "size_bytes": (sizes or {}).get(group, 1000),
            "wire_ns": 1e6 * factor(step) * random.lognormal(0.0, cv),
        }
        for step in range(steps)
        for group, factor in factors.items()
        for _ in range(2)
    ]
    same = {"axis": "dp", "kind": "all_reduce", "is_p2p": False, "link": ""}
    return pd.DataFrame(rows).assign(**same)


def even(step):
    """Return the factor of a healthy group."""
    return 1.0


def names(frame):
    """Return the degraded groups with the share of the steps in which they are slow."""
    return {place.where["group_id"]: place.step_frac for place in degraded_places(frame)}


@pytest.mark.parametrize("groups", [2, 4, 16])
def test_a_group_that_is_slow_in_some_steps_is_degraded(groups):
    """A link that comes and goes would hide behind its own median."""
    factors = dict.fromkeys(map(str, range(groups)), even)
    factors["1"] = lambda step: 5.0 if step % 3 == 0 else 1.0
    (place,) = degraded_places(transfers(factors))
    assert place.where == {"axis": "dp", "group_id": "1"}
    assert place.step_frac == pytest.approx(7 / STEPS)
    assert place.ratio == pytest.approx(5, rel=0.1)


def test_a_group_that_is_always_slow_is_degraded_in_all_steps():
    """The usual slow link would be called one that comes and goes."""
    assert names(transfers({"0": even, "1": lambda step: 2.0, "2": even})) == {"1": 1.0}


def test_stages_with_nearly_the_same_gradients_are_compared():
    """A slow group would be its own like, and so never slow, where each stage has its own size."""
    factors = {"0": even, "1": lambda step: 3.0}
    assert names(transfers(factors, sizes={"0": 1000, "1": 1050})) == {"1": 1.0}
    assert names(transfers(factors, sizes={"0": 1000, "1": 9000})) == {}


@pytest.mark.parametrize("cv", [0.1, 0.3])
def test_noise_is_no_slow_link(cv):
    """The noise of a busy network would send people to look for a bad cable."""
    factors = dict.fromkeys("0123", even)
    assert not [seed for seed in range(60) if names(transfers(factors, seed=seed, cv=cv))]


@pytest.mark.parametrize("cv", [0.5, 1.0])
def test_noise_does_not_come_and_go(cv):
    """Long tails would be taken for a link that is slow at times, more often than by medians."""
    factors = dict.fromkeys("0123", even)
    found = [names(transfers(factors, seed=seed, cv=cv)) for seed in range(60)]
    assert not [places for places in found if any(share < 1 for share in places.values())]


def test_a_step_that_is_slow_everywhere_blames_nobody():
    """A network that is busy now and then would be one of its links that is bad."""
    busy = {group: lambda step: 6.0 if step % 4 == 0 else 1.0 for group in "0123"}
    assert names(transfers(busy)) == {}


def test_transfers_that_take_no_time_are_no_measure():
    """A place would be infinitely slower than one whose clock did not tick."""
    factors = {"0": lambda step: 0.0, "1": even, "2": lambda step: 0.0}
    assert names(transfers(factors)) == {}


def test_few_steps_tell_nothing_of_coming_and_going():
    """One slow step of a short capture would be a habit."""
    factors = {"0": even, "1": lambda step: 9.0 if step == 0 else 1.0, "2": even}
    assert names(transfers(factors, steps=3)) == {}


def test_sizes_within_a_quarter_are_alike():
    """Sizes would chain up until a small transfer is compared with a large one."""
    frame = pd.DataFrame({"size_bytes": [130, 100, 124, 160, 1]})
    assert like_size(frame).tolist() == [130, 100, 100, 130, 1]


def sends(factors, *, steps=STEPS, seed=1, cv=0.05):
    """Return sends of some directions, two a step, slower by {"0->1": factor of a step}."""
    frame = transfers(factors, steps=steps, seed=seed, cv=cv)
    same = {"axis": "pp", "kind": "send", "is_p2p": True, "link": frame["group_id"]}
    return frame.assign(**same).assign(group_id="pp")


PIPELINE = [f"{a}->{b}" for low in range(6) for a, b in ((low, low + 6), (low + 6, low))]


def test_the_other_direction_of_a_link_is_no_other_place():
    """Fails when a link that is slow in three of twenty steps makes its own slow steps usual."""

    def at_times(step):
        return 30.0 if 5 <= step <= 7 else 1.0

    factors = dict.fromkeys(PIPELINE, even) | {"1->7": at_times, "7->1": at_times}
    (place,) = degraded_places(sends(factors))
    assert place.where == {"axis": "pp", "link": "1<->7"}
    assert place.step_frac == 3 / STEPS
    assert place.ratio == pytest.approx(30, rel=0.1)


def test_what_is_certain_of_one_direction_is_so_of_both():
    """Fails when a link that is slow both ways is reported as one direction."""
    factors = dict.fromkeys(PIPELINE, even)
    factors["1->7"] = lambda step: 9.0 if step < 5 else 1.0
    factors["7->1"] = lambda step: 9.0 if step == 0 else 1.0
    assert [place.where["link"] for place in degraded_places(sends(factors))] == ["1<->7"]


def test_a_lone_link_that_is_slow_at_times_both_ways_is_named():
    """Fails when the only link of a pipeline is compared with its own other direction."""

    def blocks(step):
        return 20.0 if step // 3 % 2 else 1.0

    (place,) = degraded_places(sends({"0->1": blocks, "1->0": blocks}))
    assert (place.where["link"], place.is_alone) == ("0<->1", True)
    (place,) = degraded_places(sends({"0->1": even, "1->0": blocks}))
    assert place.where["link"] == "1->0"


@pytest.mark.parametrize(
    ("there", "back", "slow"), [(1.7, 0.3, []), (1.7, 1.1, ["1->7"]), (4.0, 1.0, ["1->7"])]
)
def test_clocks_that_are_apart_make_no_slow_link(there, back, slow):
    """Fails when what the clocks of two hosts are apart is reported as a bad cable, or hides one."""
    factors = dict.fromkeys(PIPELINE, even)
    factors |= {"1->7": lambda _step: there, "7->1": lambda _step: back}
    frame = sends(factors)
    assert [place.where["link"] for place in degraded_places(frame)] == ["1->7"]
    corrected = frame["link"].isin(["1->7", "7->1"])
    frame["clock_error_ns"] = np.where(corrected, 5e5, 0.0)
    assert [place.where["link"] for place in degraded_places(frame)] == slow


@pytest.mark.parametrize(("error_ns", "slow"), [(5e5, ["1->7"]), (9e5, [])])
def test_a_link_that_only_sends_is_slow_beyond_the_error_of_its_clocks(error_ns, slow):
    """Fails when nothing comes back that would tell a bad cable from a wrong clock, and one is named."""
    factors = {link: even for link in PIPELINE if link[0] < link[-1]} | {"1->7": lambda _step: 1.7}
    frame = sends(factors).assign(clock_error_ns=error_ns)
    assert [place.where["link"] for place in degraded_places(frame)] == slow


def test_a_link_that_is_slow_both_ways_is_slow_whatever_its_clocks_are():
    """Fails when a bad cable between hosts whose clocks are hardly known is a loss without a place."""
    factors = dict.fromkeys(PIPELINE, even)
    factors |= {"1->7": lambda _step: 6.0, "7->1": lambda _step: 6.0}
    frame = sends(factors).assign(clock_error_ns=1e12)
    assert [place.where["link"] for place in degraded_places(frame)] == ["1<->7"]


def test_groups_may_be_called_like_links():
    """Fails when the name of a group is taken for the ends of a link."""
    assert names(transfers({"a->b": even, "b->a": lambda step: 3.0, "c": even})) == {"b->a": 1.0}


@pytest.mark.parametrize("cv", [0.3, 0.5])
def test_noise_of_links_does_not_come_and_go(cv):
    """Fails when the noise of both directions together looks like a bad link."""
    factors = dict.fromkeys(PIPELINE, even)
    found = [degraded_places(sends(factors, seed=seed, cv=cv)) for seed in range(40)]
    assert not [places for places in found if any(own.step_frac < 1 for own in places)]


def test_a_group_that_is_slow_in_half_of_the_steps_is_compared_in_the_others():
    """Others are faster while all wait for it: its repair would promise what they never take in time."""

    def slow(step):
        return 5.0 if step % 2 else 1.0

    def hurried(step):
        return 0.75 if step % 2 else 1.0

    frame = transfers({"0": hurried, "1": slow, "2": hurried})
    (place,) = degraded_places(frame)
    assert place.step_frac == 0.5
    assert set(frame.loc[place.like, "step"]) == set(range(0, STEPS, 2))
    assert frame.loc[place.like, "wire_ns"].mean() == pytest.approx(1e6, rel=0.05)


def test_a_group_that_is_slow_always_is_not_called_slow_at_times_for_its_noise():
    """A link that is a third slower would be reported as one that comes and goes."""
    frame = transfers({"0": even, "1": lambda step: 1.35, "2": even}, cv=0.15)
    (place,) = degraded_places(frame)
    assert place.step_frac == 1.0
    assert set(frame.loc[place.like, "step"]) == set(range(STEPS))


@pytest.mark.parametrize("groups", [2, 4])
def test_a_link_that_comes_and_goes_beside_slower_ones_is_degraded(groups):
    """A link that is 40 times slower in half of the steps would be healthy beside others with a lag in each."""
    factors = dict.fromkeys(map(str, range(groups)), lambda step: 40.0)
    factors["1"] = lambda step: 60.0 if step % 6 >= 3 else 1.5
    (place,) = (own for own in degraded_places(transfers(factors, steps=36)) if own.is_alone)
    assert place.where == {"axis": "dp", "group_id": "1"}
    assert place.step_frac == pytest.approx(0.5)
    assert place.ratio == pytest.approx(40, rel=0.1)


@pytest.mark.parametrize("often", [3, 4])
def test_both_directions_of_such_a_link_are_one_place(often):
    """One bad cable beside links with a lag would be reported as two, or as slow always besides."""
    factors = dict.fromkeys(PIPELINE, lambda step: 40.0)
    factors |= dict.fromkeys(["1->7", "7->1"], lambda step: 80.0 if step % 6 < often else 1.5)
    (place,) = degraded_places(sends(factors, steps=36))
    assert (place.where["link"], place.is_alone) == ("1<->7", True)
    assert place.step_frac == pytest.approx(often / 6)
    assert not (place.events & place.like).any()


def test_a_link_that_is_faster_at_times_is_healthy():
    """Steps in which nobody else uses the network would make all others a degradation."""
    factors = dict.fromkeys(map(str, range(4)), lambda step: 10.0)
    factors["1"] = lambda step: 10.0 if step % 6 >= 3 else 1.0
    assert names(transfers(factors, steps=36)) == {}
