"""Slow groups and links of one network port: one cause, at the price of all of them together."""

from dataclasses import replace

import pytest

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.analyze.tables.trace import Card, Machine
from meshscope.probe.schema.layout import ParallelLayout

MESH = ParallelLayout(pp=2, dp=4)
CHAIN = ParallelLayout(pp=8)


def slow(axis, rank, peer, extra_ms):
    """Return a fault on what passes between two ranks."""
    return Fault(kind=FaultKind.SLOW_LINK, axis=axis, rank=rank, peer=peer, extra_ms=extra_ms)


def run(layout, *faults, hosts=True, seed=0, steps=10):
    """Return a capture whose ranks have a host each, and its truth."""
    job = SyntheticJob(layout=layout, steps=steps, faults=faults, jitter_cv=0.02, seed=seed)
    trace, truth = generate(job)
    clocks = {rank: f"host{rank}" for rank in trace.ranks} if hosts else {}
    return replace(trace, clocks=clocks, _frames={}), truth


def links(diagnosis):
    """Return the findings on slow links."""
    return [one for one in diagnosis.findings if one.kind == "slow_link"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("extra_ms", [3.0, 12.0])
def test_links_of_one_port_are_one_cause_at_their_common_price(extra_ms, seed):
    """Fails when a host that sends slowly is reported in parts, none of which has its price."""
    faults = (slow("pp", 1, 0, extra_ms), slow("pp", 1, 2, extra_ms))
    trace, truth = run(CHAIN, *faults, seed=seed)
    (found,) = links(diagnose(trace))
    assert (found.where["axis"], found.where["host"]) == ("pp", "host1")
    assert found.removal_gain_frac == pytest.approx(truth.joint_ns / truth.step_time_ns, abs=0.015)
    reported = {evidence.code for evidence in found.evidence}
    assert {"slow_port.link", "slow_port.together", "link_rate.no_interface"} <= reported


def test_a_group_and_a_link_of_one_port_are_one_cause():
    """Fails when gradients and messages that leave a host by one wire are two causes."""
    faults = (slow("dp", 1, None, 8.0), slow("pp", 1, 5, 8.0))
    trace, truth = run(MESH, *faults)
    (found,) = links(diagnose(trace))
    assert found.where["host"] == "host1"
    assert found.removal_gain_frac == pytest.approx(truth.joint_ns / truth.step_time_ns, abs=0.015)
    assert {"slow_port.group", "slow_port.link"} <= {one.code for one in found.evidence}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("layout", "first", "second"),
    [
        (CHAIN, slow("pp", 1, 0, 12.0), slow("pp", 1, 2, 12.0)),
        (MESH, slow("dp", 1, None, 8.0), slow("pp", 1, 5, 8.0)),
    ],
    ids=["links", "group and link"],
)
def test_a_port_that_is_slow_at_times_is_one_cause(layout, first, second, seed):
    """Fails when a port that is slow for some steps is reported in parts: each alone returns next to nothing, both a lot."""
    faults = (
        replace(first, first_step=3, last_step=8),
        replace(second, first_step=4, last_step=8),
    )
    trace, truth = run(layout, *faults, seed=seed, steps=24)
    (found,) = links(diagnose(trace))
    assert (found.where["host"], found.where["steps"]) == ("host1", [3, 8])
    assert found.removal_gain_frac == pytest.approx(truth.joint_ns / truth.step_time_ns, abs=0.015)


def test_links_that_are_slow_at_other_times_keep_their_causes():
    """Fails when two links of one host that fail one after the other are one port, slow for as long as both."""
    first, second = slow("pp", 1, 0, 12.0), slow("pp", 1, 2, 12.0)
    faults = (
        replace(first, first_step=3, last_step=6),
        replace(second, first_step=5, last_step=9),
    )
    trace, _ = run(CHAIN, *faults, steps=24)
    found = {one.where["link"]: one.where["steps"] for one in links(diagnose(trace))}
    assert found == {"0<->1": [3, 6], "1<->2": [5, 9]}


def test_ranks_with_cards_of_their_own_do_not_share_a_port():
    """Fails when links of two cards of one host are reported as one port, which is neither."""
    faults = (slow("pp", 0, 4, 12.0), slow("pp", 1, 5, 12.0))
    trace, _ = run(MESH, *faults)
    clocks = {rank: f"host{rank // 4}" for rank in trace.ranks}
    one_card = (Card(name="eth0", socket=None, bytes_per_s=None, ranks=()),)
    each = tuple(
        Card(name=f"mlx5_{rank}", socket=None, bytes_per_s=None, ranks=(rank, rank + 4))
        for rank in range(4)
    )
    found = {}
    for name, cards in {"one": one_card, "each": each}.items():
        machines = tuple(
            Machine(name=f"host{at}", ranks=tuple(range(4 * at, 4 * at + 4)), cards=cards)
            for at in range(2)
        )
        placed = replace(trace, clocks=clocks, machines=machines, _frames={})
        found[name] = [one.where for one in links(diagnose(placed))]
    assert all("link" in where for where in found["each"])
    assert [where.get("host") for where in found["one"]] == ["host0"]


def test_a_port_that_is_fast_for_most_of_its_bytes_is_not_slow():
    """Fails when two of eight groups over a port are slow, and the port is blamed."""
    faults = (slow("pp", 0, 8, 12.0), slow("pp", 1, 9, 12.0))
    trace, _ = run(ParallelLayout(pp=2, dp=8), *faults)
    clocks = {rank: f"host{rank // 8}" for rank in trace.ranks}
    card = (Card(name="eth0", socket=None, bytes_per_s=None, ranks=()),)
    machines = tuple(
        Machine(name=f"host{at}", ranks=tuple(range(8 * at, 8 * at + 8)), cards=card)
        for at in range(2)
    )
    found = links(diagnose(replace(trace, clocks=clocks, machines=machines, _frames={})))
    assert all("host" not in one.where for one in found)
    assert len(found) == 2


def test_without_hosts_links_keep_their_causes():
    """Fails when ranks that nothing places on a host are said to share its port."""
    faults = (slow("pp", 1, 0, 12.0), slow("pp", 1, 2, 12.0))
    trace, _ = run(CHAIN, *faults, hosts=False)
    assert len(links(diagnose(trace))) == 2


def test_links_that_share_no_port_keep_their_causes():
    """Fails when two slow links of four hosts are one port of nobody."""
    faults = (slow("pp", 0, 1, 12.0), slow("pp", 2, 3, 12.0))
    trace, _ = run(CHAIN, *faults)
    assert {one.where["link"] for one in links(diagnose(trace))} == {"0<->1", "2<->3"}
