"""What traffic says about the axis of a group, and what it does not."""

import pytest
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.align.topology.axes import contradictions, with_axes
from meshscope.analyze.align.topology.group_traffic import traffic_axes
from meshscope.analyze.align.topology.layout import with_inferred_layout
from meshscope.probe.schema.layout import ParallelLayout


def sends(*pairs):
    """Return the sends between pairs of ranks."""
    return [
        {"rank": source, "peer": target, "direction": "send", "start_ns": 0, "end_ns": 1}
        for source, target in pairs
    ]


def test_sends_there_and_back_are_a_pipeline():
    """Activations and gradients between stages would lie on no axis."""
    found = traffic_axes(trace_of(p2p=sends((0, 2), (2, 0), (2, 4), (4, 2))))["g"]
    assert found.axis == "pp"
    assert "0-2" in str(found.why)


def test_sends_one_way_round_a_ring_are_context_parallel():
    """Ring attention would be reported as a pipeline."""
    assert traffic_axes(trace_of(p2p=sends((0, 1), (1, 2), (2, 3), (3, 0))))["g"].axis == "cp"


def test_a_chain_one_way_is_a_pipeline():
    """A forward-only pipeline would be taken for a ring."""
    assert traffic_axes(trace_of(p2p=sends((0, 1), (1, 2), (2, 3))))["g"].axis == "pp"


@pytest.mark.parametrize(
    ("kind", "ranks", "axis"),
    [
        ("all_reduce", [0, 1], "dp"),
        ("all_to_all", [0, 1], None),
        ("all_gather", [0, 1], None),
        ("all_reduce", [0], None),
    ],
)
def test_the_only_group_is_data_parallel_if_it_reduces_over_the_world(kind, ranks, axis):
    """Expert or tensor traffic would be called data-parallel for want of another group."""
    rows = [{"start_ns": 0, "end_ns": 1, "kind": kind}]
    group = [{"ranks": ranks}]
    found = traffic_axes(trace_of(run={"world_size": 2}, group=group, collective=rows))
    assert (found["g"].axis if found else None) == axis


@pytest.mark.parametrize(("world", "axis"), [(2, "dp"), (4, None)])
def test_groups_over_all_ranks_that_only_reduce_are_data_parallel(world, axis):
    """A framework that reduces on a group of its own beside the default one would have no mesh."""
    groups = [{"group_id": name, "ranks": [0, 1]} for name in ("a", "b")]
    rows = [
        {"group_id": name, "kind": kind, "start_ns": 0, "end_ns": 1}
        for name, kind in (("a", "all_reduce"), ("b", "barrier"))
    ]
    trace = trace_of(run={"world_size": world}, group=groups, collective=rows)
    assert {found.axis for found in traffic_axes(trace).values()} == ({axis} if axis else set())
    layout = with_inferred_layout(with_axes(trace)).layout
    assert layout == (ParallelLayout(dp=2) if axis else None)


@pytest.mark.parametrize(("issue_ns", "axis"), [(50, None), (150, "dp")])
def test_a_forward_that_reduces_is_not_data_parallel(issue_ns, axis):
    """Tensor parallelism over all ranks would be called data-parallel."""
    spans = [{"rank": 0, "kind": "forward", "start_ns": 0, "dur_ns": 100}]
    rows = [{"kind": "all_reduce", "issue_ns": issue_ns, "start_ns": issue_ns, "end_ns": 200}]
    trace = trace_of(run={"world_size": 2}, group=[{"ranks": [0, 1]}], collective=rows, span=spans)
    assert [found.axis for found in traffic_axes(trace).values()] == ([axis] if axis else [])


def test_a_name_against_the_layout_is_a_contradiction():
    """A wrong layout would be used without a word."""
    layout = ParallelLayout(tp=2, dp=2)
    group = [{"ranks": [0, 2], "description": "TENSOR_MODEL_PARALLEL_GROUP"}]
    (reported,) = contradictions(with_axes(trace_of(layout=layout, group=group)))
    assert "TENSOR_MODEL_PARALLEL_GROUP" in str(reported)
    assert "along dp" in str(reported)


def test_sends_across_several_axes_are_a_contradiction():
    """A mesh in the wrong order would pass although stages talk across it."""
    layout = ParallelLayout(pp=2, dp=2)
    assert contradictions(trace_of(layout=layout, p2p=sends((0, 2), (2, 0)))) == []
    (reported,) = contradictions(trace_of(layout=layout, p2p=sends((0, 3), (0, 2))))
    assert "1 of 2 pairs" in str(reported)


@pytest.mark.parametrize(("issue_ns", "axis"), [(50, "ep"), (150, "dp")])
def test_exchanges_before_there_are_gradients_are_those_of_experts(issue_ns, axis):
    """Fails when tokens that go to experts on the group of all ranks are gradients by their axis."""
    spans = [
        {"kind": kind, "start_ns": at, "dur_ns": 40}
        for kind, at in (("forward", 0), ("backward", 100))
    ]
    times = {"start_ns": 160, "end_ns": 200}
    rows = [
        {"kind": "all_to_all", "issue_ns": issue_ns, **times},
        {"kind": "all_reduce", "issue_ns": 160, "event_id": 1, "seq": 1, **times},
    ]
    layout = ParallelLayout(dp=2)
    trace = trace_of(layout=layout, group=[{"ranks": [0, 1]}], collective=rows, span=spans)
    found = with_axes(trace).frame("collective")
    assert dict(zip(found["kind"], found["axis"], strict=True)) == {
        "all_to_all": axis,
        "all_reduce": "dp",
    }


def exchange(rank, words):
    """Return spans and transfers of a rank from words: F and B, or a peer with > or <."""
    spans, p2p = [], []
    for at, word in enumerate(words.split()):
        if word in "FB":
            kind = {"F": "forward", "B": "backward"}[word]
            spans.append(
                {"rank": rank, "kind": kind, "start_ns": 10 * at, "dur_ns": 9, "stage": -1}
            )
        else:
            direction = {">": "send", "<": "recv"}[word[0]]
            row = {"rank": rank, "peer": int(word[1:]), "direction": direction}
            p2p.append({**row, "start_ns": 10 * at, "end_ns": 10 * at + 9})
    return spans, p2p


def sending_job(*words):
    """Return a capture of ours with an exchange for each rank."""
    parts = [exchange(rank, text) for rank, text in enumerate(words)]
    ranks = tuple(range(len(words)))
    return trace_of(
        origin="meshscope",
        run={"world_size": len(words)},
        ranks=ranks,
        group=[{"ranks": list(ranks)}],
        span=[row for spans, _ in parts for row in spans],
        p2p=[row for _, p2p in parts for row in p2p],
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            (">1 >2 >3 <1 <2 <3", "<0 F B >0", "<0 F B >0", "<0 F B >0"),
            "rank 0 exchanges with 3 ranks",
        ),
        ((">1 >2 <1 <2", "<0 F B >0", "<0 F B >0"), "rank 0 exchanges with others and has no"),
        ((">1 >2 F B <1 <2", "<0 F B >0", "<0 F B >0"), "exchanges nothing between a forward"),
        ((">1 <1", "<0 F B >0"), "has no forward passes"),
        (("F >1 F >1", "<0 F B <0 F B"), "rank 0 sends to rank 1 and gets nothing back"),
    ],
    ids=["star", "server of two", "server that trains", "server of one", "teacher"],
)
def test_a_server_or_a_teacher_is_no_pipeline(words, reason):
    """Fails when ranks that serve others are called stages, with a bubble and microbatches."""
    found = with_inferred_layout(with_axes(sending_job(*words)))
    assert found.layout is None
    assert not traffic_axes(found)
    assert any(
        limit.startswith("The mesh is not known") and reason in limit
        for limit in texts(found.limits)
    )


@pytest.mark.parametrize(
    "words",
    [
        ("F >1 F >1 <1 B <1 B", "<0 F <0 F B >0 B >0"),
        ("F >1 <1 B", "<0 F >2 <2 B >0", "<1 F B >1"),
    ],
    ids=["gpipe", "one microbatch"],
)
def test_stages_that_send_between_passes_are_a_pipeline(words):
    """Fails when a pipeline that was written by hand has no mesh."""
    layout = with_inferred_layout(with_axes(sending_job(*words))).layout
    assert layout == ParallelLayout(pp=len(words))


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (("F >2 <2 B", "<2 F B >2", "<0 F >1 <1 B >0"), "0, 2 and 1"),
        (("<1 F B >1", "<2 F >0 <0 B >2", "F >1 <1 B"), "2, 1 and 0"),
    ],
    ids=["mixed", "turned round"],
)
def test_stages_in_another_order_than_the_ranks_have_no_mesh(words, order):
    """Fails when the last rank is said to hold the output head though its stage is another one."""
    found = with_inferred_layout(with_axes(sending_job(*words)))
    assert found.layout is None
    assert any(
        f"the stages lie on ranks {order}, in this order" in limit for limit in texts(found.limits)
    )
