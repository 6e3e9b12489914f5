"""Groups that share one slow link: what it costs is what the same job gains on the fast link."""

import pytest
from tests.shared_links import over_one_link, over_one_port

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.layout import ParallelLayout

FAST = 1.25e9
"""10 Gbit/s."""
CASES = {
    "tp2 dp2": (ParallelLayout(tp=2, dp=2), 2),
    "tp4 dp2": (ParallelLayout(tp=4, dp=2), 4),
    "dp4": (ParallelLayout(dp=4), 1),
    "pp2 dp2": (ParallelLayout(pp=2, dp=2, order="dp-pp-cp-tp"), 2),
}
SLOWDOWNS = (4, 10, 60)
IN_CI = ("tp2 dp2-10-0", "tp4 dp2-60-1", "dp4-4-2", "pp2 dp2-10-1")
"""One of each mesh."""


def links(diagnosis):
    """Return the findings on transfers that are slower than they should be."""
    return [one for one in diagnosis.findings if one.kind in ("slow_link", "slow_wire")]


def pair(case, times, seed, stated):
    """Return the diagnosis over a link that is so many times slower, and what it truly costs."""
    layout, per_host = CASES[case]
    slow, fast = (
        over_one_link(layout, rate, seed=seed, per_host=per_host, stated=stated)
        for rate in (FAST / times, FAST)
    )
    slow, fast = diagnose(slow), diagnose(fast)
    return slow, fast, 1 - fast.step_time_ns / slow.step_time_ns


@pytest.mark.sampled(keep=IN_CI)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("times", SLOWDOWNS)
@pytest.mark.parametrize("case", CASES)
def test_a_slow_link_whose_speed_is_stated_has_its_true_price(case, times, seed):
    """Fails when a slow link without a healthy peer is reported in parts, or as traffic of others."""
    slow, fast, truth = pair(case, times, seed, FAST)
    assert not links(fast)
    (link,) = links(slow)
    assert link.kind == "slow_link"
    assert link.where["axis"] == "dp"
    assert link.removal_gain_interval is None
    assert link.removal_gain_frac == pytest.approx(truth, abs=0.02)


@pytest.mark.sampled(keep=IN_CI)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("times", SLOWDOWNS)
@pytest.mark.parametrize("case", CASES)
def test_a_slow_link_of_unknown_speed_has_no_certain_price(case, times, seed):
    """Fails when the fastest moment of a link that is always slow passes for an undisturbed wire."""
    slow, _, truth = pair(case, times, seed, None)
    for link in links(slow):
        assert link.kind == "slow_link"
        low, high = link.removal_gain_interval
        assert low == 0.0
        assert truth - 0.01 <= high
    exposed = next(one for one in slow.findings if one.kind == "exposed_communication")
    assert "link_rate.exposed" in [getattr(fact, "code", "") for fact in exposed.evidence]


@pytest.mark.parametrize("stated", [FAST, None])
def test_two_axes_over_one_slow_link_are_one_cause(stated):
    """Fails when one link is reported once for each axis, and neither part has its price."""
    layout = ParallelLayout(tp=2, dp=2)
    slow, fast = (
        diagnose(over_one_link(layout, rate, seed=0, per_host=2, stated=stated, hosts=(0, 1, 1, 0)))
        for rate in (FAST / 10, FAST)
    )
    truth = 1 - fast.step_time_ns / slow.step_time_ns
    (link,) = links(slow)
    named = [one.values["axis"] for one in link.evidence if one.code == "link_rate.groups"]
    assert sorted(named) == ["dp", "tp"]
    if stated:
        # Each of the many short transfers is given the hops that it may need; these need none.
        assert link.removal_gain_frac == pytest.approx(truth, abs=0.03)
    else:
        assert link.removal_gain_interval[0] == 0.0
        assert truth - 0.01 <= link.removal_gain_interval[1]


def ports(groups, hosts, times, **how):
    """Return the diagnosis over a port that is so many times slower, and what it truly costs."""
    slow, fast = (
        diagnose(over_one_port(groups, rate, hosts, stated=FAST, **how))
        for rate in (FAST / times, FAST)
    )
    return slow, fast, 1 - fast.step_time_ns / slow.step_time_ns


@pytest.mark.sampled(keep=("sizes0-10",))
@pytest.mark.parametrize("times", SLOWDOWNS)
@pytest.mark.parametrize("sizes", [(4e6, 4e6), (6e6, 2e6)])
def test_axes_of_several_hosts_share_the_port_that_all_have_in_common(sizes, times):
    """Fails when a port is reported once an axis: each alone returns nothing, since all wait for the others, and both all."""
    # Host 1 has the second rank of one group and the first of the other.
    groups = {"dp": ((0, 1), sizes[0]), "cp": ((2, 3), sizes[1])}
    slow, fast, truth = ports(groups, (0, 1, 1, 2), times)
    # Work of 10 ms, what everyone joins in 50 us, and the bytes of both at the rate of the port.
    fast_ns, slow_ns = (10e6 + 50e3 + sum(sizes) / rate * 1e9 for rate in (FAST, FAST / times))
    assert truth == pytest.approx(1 - fast_ns / slow_ns, abs=1e-6)
    assert not links(fast)
    (link,) = links(slow)
    assert link.where["host"] == "host1"
    named = [one.values["axis"] for one in link.evidence if one.code == "link_rate.groups"]
    assert sorted(named) == ["cp", "dp"]
    assert link.removal_gain_frac == pytest.approx(truth, abs=0.015)


def test_slow_links_without_a_port_in_common_keep_their_causes():
    """Fails when links of hosts that share nothing are one cause with one host."""
    groups = {"dp": ((0, 1), 4e6), "cp": ((2, 3), 4e6)}
    slow, _, _ = ports(groups, (0, 1, 2, 3), 10, shared=False)
    assert sorted(one.where["axis"] for one in links(slow)) == ["cp", "dp"]


def test_a_slow_group_and_a_steady_link_share_a_port():
    """Fails when a group that is slower than its like, and another axis over the same port, are priced apart."""
    groups = {"dp": ((0, 1), 4e6), "cp": ((2, 3), 4e6)}
    # A group of dp elsewhere takes as long as one that shares a fast port.
    more = {"fast": ("dp", (4, 5), 4e6, FAST / 2)}
    slow, fast, truth = ports(groups, (0, 1, 1, 2, 3, 4), 10, elsewhere=more)
    assert not links(fast)
    (link,) = links(slow)
    assert (link.where["axis"], link.where["host"]) == ("dp", "host1")
    assert {"slow_port.group", "slow_port.more"} <= {one.code for one in link.evidence}
    assert link.removal_gain_frac == pytest.approx(truth, abs=0.015)
