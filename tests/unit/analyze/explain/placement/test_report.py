"""The mesh on its machines in JSON and text."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.tables import trace_of

from meshscope.analyze.explain.placement.launch import (
    Refusal,
    expert_groups,
    may_have_experts,
    megatron_flag,
    megatron_order,
)
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.findings.rules.placement import topology_violations
from meshscope.analyze.output.json import topology_to_json
from meshscope.analyze.output.render import to_markdown, to_plain
from meshscope.analyze.output.text import topology_document
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout

COSTS = Costs(tp_ns=1_000_000)


def job(order, ranks_per_host=4, costs=COSTS):
    """Return the capture of a job of two hosts."""
    layout = ParallelLayout(tp=2, pp=2, dp=2, order=order)
    return generate(
        SyntheticJob(layout=layout, microbatches=4, ranks_per_host=ranks_per_host, costs=costs)
    )[0]


def test_bad_mesh_is_priced_and_can_be_pasted():
    """Fails when the price is not the algebraic one, or the order cannot be pasted."""
    result = topology_to_json(job("tp-pp-dp-cp"))
    found = result["placement"]
    (one,) = found["violations"]
    assert found["hosts"] == {"host0000": [0, 1, 2, 3], "host0001": [4, 5, 6, 7]}
    assert (one["code"], one["axis"]) == ("inner_axis_crosses", "tp")
    # Eight reductions of 1 MiB, 1 ms each, cross: 4 MiB a ms leave a host. Inside, gradients run
    # at 64 MiB a ms. The pipeline then crosses: 4 ranks x 4 MiB, 4 ms where it took 0.4 ms.
    assert one["exposed_ns_per_step"] == pytest.approx(8e6)
    # The exposed share changes with that: the job that has these times is the measure.
    better = Costs(tp_ns=COSTS.tp_ns // 64, pp_ns=COSTS.pp_ns * 10)
    bad_ns, good_ns = (
        measure(job("tp-pp-dp-cp", costs=costs)).windows.step_time_ns for costs in (COSTS, better)
    )
    assert one["gain_ns_per_step"] == pytest.approx(bad_ns - good_ns, rel=0.01)
    assert one["own_gain_ns_per_step"] > one["gain_ns_per_step"]
    better = found["better_order"]
    assert better["order"].endswith("tp")
    text = to_plain(topology_document(result))
    assert f'order="{better["megatron_order"]}"' in text
    assert better["megatron_flag"] == ""
    assert "their default, without --use-tp-pp-dp-mapping" in text
    assert "rank 4=host0000 slot=2" in text
    assert "TP: groups cross hosts" in text


def test_good_mesh_has_no_violation():
    """Fails when a mesh whose tensor groups lie inside hosts is blamed."""
    result = topology_to_json(job("pp-dp-cp-tp"))
    assert result["placement"]["violations"] == []
    assert "None found." in to_markdown(topology_document(result))


def without_pipeline(speed=None):
    """Return a job of tensor groups across two hosts and gradients inside, with the speed of the ports where it is given."""
    layout = ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp")
    trace = generate(
        SyntheticJob(layout=layout, microbatches=4, ranks_per_host=4, steps=3, costs=COSTS)
    )[0]
    if speed is None:
        return trace
    ports = [
        {"host": host, "port": "eth0", "time_ns": 1, "speed_bytes_per_s": speed}
        for host in sorted(set(trace.clocks.values()))
    ]
    sampled = trace_of(link_sample=ports)
    return replace(trace, tables={**trace.tables, "link_sample": sampled.tables["link_sample"]})


def test_an_order_beyond_what_was_recorded_has_no_price_without_the_speed_of_ports():
    """Fails when a gain is promised at a rate that long messages never had, or the missing speed is not asked for."""
    # The gradients, 200 MB in one go, would leave hosts that send 4 MiB at a time.
    trace = without_pipeline()
    result = topology_to_json(trace)
    ((one,), text) = result["placement"]["violations"], to_plain(topology_document(result))
    assert (one["gain_unknown"], one["gain_ns_per_step"]) == ("port_speed", None)
    assert result["placement"]["better_order"] is None
    assert "orders_without_price" in result["placement"]["not_checked"]
    assert "Gain of other orders unknown" in text
    assert "state the speed of each [[host.nic]]" in text
    (found,) = topology_violations(measure(trace))
    assert found.removal_gain_frac is None
    assert found.evidence[-1].code == "placement.beyond_recorded"
    assert found.remedy.code == "placement.state_speed"


def test_with_the_speed_of_ports_every_order_has_a_price():
    """Fails when the speed that the user was asked for changes nothing."""
    trace = without_pipeline(speed=10e9)
    result = topology_to_json(trace)
    (one,) = result["placement"]["violations"]
    assert one["gain_unknown"] is None
    assert "No order is predicted to be 1 % faster" in to_plain(topology_document(result))
    (found,) = topology_violations(measure(trace))
    assert found.evidence[-1].code == "placement.no_faster_order"


def test_unknown_hosts_are_said():
    """Fails when ranks without a host pass for ranks of one host."""
    result = topology_to_json(replace(job("tp-pp-dp-cp"), clocks={0: "a"}))
    assert result["placement"]["unknown"] == "hosts"
    assert result["placement"]["hosts"] is None
    assert "Placement unknown" in to_plain(topology_document(result))


@pytest.mark.parametrize(
    ("layout", "order", "flag"),
    [
        ({"pp": 2, "dp": 2, "tp": 2}, "pp-dp-cp-tp", ""),
        ({"dp": 2, "pp": 2, "tp": 2}, "dp-cp-pp-tp", "--use-tp-pp-dp-mapping"),
        ({"dp": 2, "pp": 2, "cp": 2, "tp": 2}, "dp-pp-cp-tp", None),
        ({"dp": 2, "pp": 2, "ep": 2, "tp": 2}, "dp-pp-cp-tp", None),
        ({"dp": 4, "tp": 2}, "dp-pp-cp-tp", ""),
        ({"tp": 2, "dp": 2, "pp": 2}, "tp-dp-pp-cp", None),
    ],
)
def test_the_option_of_megatron_lm_gives_the_order(layout, order, flag):
    """Fails when somebody pastes an option that leaves the ranks in another order, or stops the job at its start."""
    assert megatron_flag(ParallelLayout(**layout), order, None) == flag


def groups(sizes, order, axis):
    """Return the groups along an axis of a mesh whose axes are ordered so, fastest first."""
    names = order.split("-")[::-1]
    ranks = np.arange(math.prod(sizes.values())).reshape([sizes[name] for name in names])
    found = np.moveaxis(ranks, names.index(axis), -1).reshape(-1, sizes[axis])
    return {frozenset(one) for one in found.tolist()}


def is_taken(layout, order, experts, has_experts):
    """Return whether Megatron-core takes an order with ep, fastest first, and shares experts among these groups.

    A mesh of the experts is made for dense models, too; where their groups lie matters to none of these.
    """
    replicas = layout.dp * layout.cp // layout.ep
    rest = {"tp": layout.tp, "cp": layout.cp, "ep": 1, "dp": layout.dp, "pp": layout.pp}
    expert = {"tp": layout.tp, "cp": 1, "ep": layout.ep, "dp": replicas, "pp": layout.pp}
    if not order.endswith("pp") and layout.pp > 1 and replicas != layout.dp:
        return False
    if groups(rest, order, "pp") != groups(expert, order, "pp"):
        return False
    is_there = groups(expert, order, "ep") == experts
    return not has_experts or (
        is_there and groups(rest, order, "tp") == groups(expert, order, "tp")
    )


@pytest.mark.parametrize("fast", ["cp", "dp"])
@pytest.mark.parametrize("has_experts", [True, False], ids=["experts", "dense"])
@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(tp=2, cp=2, dp=2),
        ParallelLayout(tp=2, cp=4, pp=2),
        ParallelLayout(tp=2, pp=2, dp=2),
        ParallelLayout(tp=2, pp=2, dp=4, ep=4),
        ParallelLayout(tp=2, pp=2, dp=2, cp=2),
        ParallelLayout(tp=2, pp=2, dp=2, cp=2, ep=2),
        ParallelLayout(tp=2, pp=2, dp=4, cp=2, ep=4),
        ParallelLayout(tp=2, pp=2, dp=2, cp=4, ep=2),
        ParallelLayout(tp=2, dp=4, cp=2, ep=4),
        ParallelLayout(tp=2, dp=4, cp=2, ep=8),
    ],
)
def test_megatron_core_does_with_the_order_what_is_priced(layout, has_experts, fast):
    """Fails when the pasted order stops a job with experts or shares them among other ranks, or a good one is withheld."""
    names = ("pp", "tp", "dp", "cp") if fast == "cp" else ("pp", "tp", "cp", "dp")
    sizes = {name: getattr(layout, name) for name in names}
    at = np.indices(sizes.values()).reshape(4, -1)
    places = [
        layout.rank(**dict(zip(names, map(int, own), strict=True)))
        for own in at.T.reshape(-1, len(names))
    ]
    experts = np.array(places).reshape(-1, layout.ep)
    is_moe = has_experts or layout.ep > 1
    for axes in itertools.permutations(("pp", "dp", "cp", "tp")):
        other = replace(layout, order="-".join(axes))
        priced = {
            frozenset(other.rank(**layout.coordinates(place)) for place in own)
            for own in experts.tolist()
        }
        found = megatron_order(layout, other.order, experts, has_experts=has_experts)
        tried = [list(axes[::-1]) for _ in range(5)]
        for place, own in enumerate(tried):
            own.insert(place, "ep")
        is_any = any(is_taken(layout, "-".join(own), priced, is_moe) for own in tried)
        assert isinstance(found, Refusal) != is_any
        if is_any:
            assert is_taken(layout, found, priced, is_moe)
            assert [name for name in found.split("-") if name != "ep"] == [*axes[::-1]]


def test_an_order_that_would_share_experts_elsewhere_is_withheld():
    """Fails when the price is of one place of the experts, and the pasted order makes another."""
    layout = ParallelLayout(tp=2, dp=2, cp=2, ep=2)
    experts = np.array([[0, 2], [4, 6], [1, 3], [5, 7]])
    assert megatron_order(layout, "pp-dp-cp-tp", experts) == "tp-cp-ep-dp-pp"
    assert megatron_flag(layout, "pp-dp-cp-tp", experts) == ""
    # As many experts as parts of the sequence may vary slower than replicas.
    assert megatron_order(layout, "pp-cp-dp-tp", experts) == "tp-dp-ep-cp-pp"
    assert megatron_order(layout, "pp-cp-tp-dp", experts) == "dp-tp-ep-cp-pp"
    # Half of the replicas with all parts of the sequence are no neighbours there.
    wide = ParallelLayout(dp=4, cp=2, ep=4)
    assert megatron_order(wide, "pp-cp-dp-tp", np.arange(8).reshape(2, 4)) is Refusal.EXPERTS
    assert expert_groups(layout, "pp-cp-dp-tp", experts) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    # Groups along the replicas are not those of the default.
    along = np.array([[0, 4], [2, 6], [1, 5], [3, 7]])
    assert megatron_order(layout, "pp-dp-cp-tp", along) != "tp-cp-ep-dp-pp"
    assert megatron_flag(layout, "pp-dp-cp-tp", along) is None


def test_experts_that_are_shared_along_tensor_groups():
    """Fails when experts without tensor parallelism are taken to have it, and a good order is refused, or the run ends."""
    layout = ParallelLayout(tp=2, pp=4, dp=2, ep=4)
    experts = np.arange(16).reshape(4, 4)
    assert megatron_order(layout, "pp-dp-cp-tp", experts) == "tp-cp-ep-dp-pp"
    assert megatron_flag(layout, "pp-dp-cp-tp", experts) == ""
    assert megatron_order(layout, "dp-pp-cp-tp", experts) is Refusal.STAGES
    # Experts in groups that do not divide the job have no known place.
    odd = ParallelLayout(tp=3, dp=2, ep=4)
    assert isinstance(megatron_order(odd, "pp-dp-cp-tp", None), Refusal)


@pytest.mark.parametrize("experts", [0, 4])
def test_experts_that_no_ranks_share_are_split_as_tensor_groups_are(experts):
    """Fails when the order of a job with experts splits each of them among other ranks, or that of a dense one is withheld."""
    # The mesh of the experts has no parts of the sequence: their tensor groups are neighbours.
    layout = ParallelLayout(tp=2, cp=2, dp=2)
    model = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 256, "seq_len": 32}
    model |= {"experts": experts, "experts_per_token": min(experts, 1)}
    trace = generate(SyntheticJob(layout=layout, steps=2))[0]
    for reported, may_have in ((None, True), (json.dumps(model), experts > 0)):
        assert may_have_experts(replace(trace, run={**trace.run, "model": reported})) == may_have
    found = megatron_order(layout, "pp-dp-tp-cp", None, has_experts=experts > 0)
    assert found == (Refusal.EXPERT_TENSORS if experts else "cp-tp-ep-dp-pp")
    # Orders in which tensor groups are neighbours do so in both meshes.
    assert megatron_order(layout, "pp-dp-cp-tp", None, has_experts=True) == "tp-cp-ep-dp-pp"


def test_an_order_that_megatron_core_refuses_is_said_to_be():
    """Fails when the order of a job with experts is printed for a launcher that stops at it."""
    result = topology_to_json(job("tp-pp-dp-cp"))
    better = result["placement"]["better_order"]
    text = to_plain(
        topology_document(
            {
                **result,
                "placement": {
                    **result["placement"],
                    "better_order": {
                        **better,
                        "megatron_order": None,
                        "megatron_refusal": "stages",
                        "expert_groups": [[0, 2], [1, 3]],
                    },
                },
            }
        )
    )
    assert "order=" not in text
    assert "Megatron-core refuses this order" in text
    assert "with these groups of experts: 0,2 1,3" in text


def test_a_large_job_is_reported_where_its_rank_file_is():
    """Fails when the remedy of a job of many ranks ends without a word on where each rank goes."""
    layout = ParallelLayout(tp=2, pp=2, dp=32, order="tp-pp-dp-cp")
    large = SyntheticJob(layout=layout, microbatches=4, steps=3, ranks_per_host=64, costs=COSTS)
    result = topology_to_json(generate(large)[0])
    assert len(result["placement"]["better_order"]["rank_file"]) == 128
    assert "of all 128 ranks: --format json, placement.better_order" in to_plain(
        topology_document(result)
    )
