"""Meshes that lie badly, with the price by algebra."""

from dataclasses import replace

import numpy as np
import pytest

from meshscope.analyze.explain.placement.crossing import Pattern
from meshscope.analyze.explain.placement.estimates import NoPrice, estimated_gains
from meshscope.analyze.explain.placement.launch import host_list, rank_file
from meshscope.analyze.explain.placement.traffic import Traffic
from meshscope.analyze.explain.placement.violations import (
    Violation,
    ViolationCode,
    crossing_codes,
    host_numbers,
)
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.rules.placement import _remedy
from meshscope.analyze.synthetic import SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis, ScheduleKind

HOSTS = ["a"] * 4 + ["b"] * 4


def neighbours(layout):
    """Return the groups of experts of a mesh, parts of the sequence varying faster than replicas."""
    data = np.arange(layout.world_size).reshape(layout.pp, -1, layout.tp)
    return data.swapaxes(1, 2).reshape(-1, layout.ep)


def one(axis, sent, wire, pattern=Pattern.RING):
    """Return traffic that is exposed as a whole."""
    return Traffic(axis=axis, pattern=pattern, sent_bytes=sent, wire_ns=wire, exposed_ns=wire)


@pytest.mark.parametrize(
    ("layout", "hosts", "codes"),
    [
        (ParallelLayout(tp=2, dp=4), HOSTS, []),
        (ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp"), HOSTS, ["inner_axis_crosses"]),
        (ParallelLayout(tp=8), HOSTS, []),
        (ParallelLayout(dp=8, ep=4), HOSTS, []),
        (ParallelLayout(dp=8, ep=4), ["a", "b"] * 4, ["inner_axis_crosses"]),
        (ParallelLayout(cp=8), ["a", "b"] * 4, ["ring_turns"]),
        (ParallelLayout(cp=8), HOSTS, []),
        (ParallelLayout(pp=2, dp=2, tp=2, order="dp-pp-cp-tp"), HOSTS, ["pipeline_inside"]),
        (ParallelLayout(pp=2, dp=2, tp=2), HOSTS, []),
        (ParallelLayout(tp=2, dp=4), ["a"] * 8, []),
    ],
)
def test_codes(layout, hosts, codes):
    """Fails when a good mesh is blamed or a bad one is not."""
    assert [code.value for code, _ in crossing_codes(layout, hosts, neighbours(layout))] == codes


def test_price_of_tensor_groups_across_hosts():
    """Fails when the gain of a better order is not the algebraic one."""
    layout = ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp")
    # dp lies inside at 10 bytes/ns; tp crosses at 4 groups x 1000 / 4000 = 1 byte/ns a host.
    traffic = [one(Axis.TP, 1000, 4000), one(Axis.DP, 100, 10)]
    priced = estimated_gains(layout, host_numbers(HOSTS), traffic).priced
    order, (gain, *_) = next(iter(priced.items()))
    # tp inside: 1000 / 10; dp across: 2 groups x 100 at 1 byte/ns.
    assert gain == pytest.approx((4000 - 100) + (10 - 200))
    assert order is not None
    assert order.index("tp") > order.index("dp")


def test_to_cross_hosts_makes_nothing_faster():
    """Fails when small messages inside a host are sent across it, because large ones run faster there."""
    layout = ParallelLayout(tp=2, dp=4)
    # Inside 1000 bytes in 4000 ns; across a host two groups send 2 x 100000 in 20000.
    traffic = [one(Axis.TP, 1000, 4000), one(Axis.DP, 100_000, 20_000)]
    gains = estimated_gains(layout, host_numbers(HOSTS), traffic).priced
    assert max(gain for gain, *_ in gains.values()) == pytest.approx(0.0)
    for _, ratios, _ in gains.values():
        assert ratios[Axis.TP, Pattern.RING] == 1.0
        assert ratios[Axis.DP, Pattern.RING] <= 1.0


def test_what_crosses_is_no_faster_than_the_ports():
    """Fails when short messages that a buffer swallows make large ones cross as fast, and a slower order is proposed."""
    layout = ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp")
    traffic = [one(Axis.TP, 1000, 4000), one(Axis.DP, 1000, 100)]
    free, capped = (
        max(
            gain
            for gain, *_ in estimated_gains(
                layout, host_numbers(HOSTS), traffic, *most
            ).priced.values()
        )
        for most in ((), (0.5,))
    )
    # Inside 10 bytes/ns; across two groups of dp send 2 x 1000 bytes at 1 byte/ns, or at what ports carry.
    assert free == pytest.approx((4000 - 100) + (100 - 2000))
    assert capped == pytest.approx(max(0, (4000 - 100) + (100 - 4000)))


def test_no_price_without_a_rate():
    """Fails when a rate that the run never showed is made up."""
    layout = ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp")
    # Nothing lies inside a host: only orders in which tp still crosses have a price.
    gains = estimated_gains(layout, host_numbers(HOSTS), [one(Axis.TP, 1000, 4000)])
    assert {gain for gain, *_ in gains.priced.values()} == {0}
    assert {found.no_price for found in gains.unpriced.values()} == {NoPrice.INSIDE}


def test_host_list_puts_the_groups_on_hosts():
    """Fails when the list that is to be pasted leaves tensor groups across hosts."""
    layout = ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp")
    by_rank = host_list(layout, HOSTS, "pp-dp-cp-tp")
    assert sorted(by_rank) == HOSTS
    assert crossing_codes(layout, by_rank, None) == []
    assert rank_file(by_rank)[:3] == ["rank 0=a slot=0", "rank 1=a slot=1", "rank 2=b slot=0"]


def findings(order):
    """Return the topology findings of a job of two hosts whose gradients are cheap."""
    layout = ParallelLayout(tp=2, pp=2, dp=2, order=order)
    job = SyntheticJob(
        layout=layout, schedule=ScheduleKind.ONE_F_ONE_B, microbatches=4, ranks_per_host=4
    )
    found = diagnose(generate(job)[0]).findings
    return [finding for finding in found if finding.kind == "topology_violation"]


def test_finding_of_a_run():
    """Fails when a run with tensor groups across hosts raises no finding, or a good one does."""
    (found,) = findings("tp-pp-dp-cp")
    assert found.where["axis"] == "tp"
    assert found.cause == "inner_axis_crosses"
    assert found.remedy.code == "placement.reorder"
    assert findings("pp-dp-cp-tp") == []


def test_the_remedy_names_no_order_that_megatron_core_refuses():
    """Fails when the advice for a job with experts stops it at its start."""
    found = Violation(
        code=ViolationCode.INNER_AXIS_CROSSES,
        axis=Axis.TP,
        left_bytes=1.0,
        exposed_ns=1.0,
        gain_ns=1.0,
        own_gain_ns=None,
        order="dp-pp-cp-tp",
    )
    trace = generate(SyntheticJob(layout=ParallelLayout(tp=2, pp=2, dp=2), steps=2))[0]
    assert _remedy(found, trace).values["megatron_order"] == "tp-cp-ep-pp-dp"
    refused = _remedy(found, replace(trace, layout=replace(trace.layout, ep=2)))
    assert refused.code == "placement.reorder_by_hosts"
    assert "megatron" not in str(refused).lower()


def test_latency_moves_with_the_axis():
    """Fails when the hops of an axis keep the latency of the place that it leaves."""
    layout = ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp")
    far = Traffic(
        axis=Axis.TP,
        pattern=Pattern.RING,
        sent_bytes=1000,
        wire_ns=4000 + 600,
        exposed_ns=4600,
        fixed_ns=600,
        hops=6,
    )
    near = Traffic(
        axis=Axis.DP,
        pattern=Pattern.RING,
        sent_bytes=100,
        wire_ns=10 + 30,
        exposed_ns=40,
        fixed_ns=30,
        hops=3,
    )
    priced = estimated_gains(layout, host_numbers(HOSTS), [far, near]).priced
    _, (gain, *_) = next(iter(priced.items()))
    tensor, data = 6 * 10 + 100, 3 * 100 + 200
    assert gain == pytest.approx((4600 - tensor) + (40 - data))
