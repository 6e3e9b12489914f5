"""Meshes from named groups: the only one that explains all of them, or none."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.align.topology.axes import named_axes
from meshscope.analyze.align.topology.layout import NamedGroup, infer_layout, with_inferred_layout
from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.terms import Axis

SIZES = st.integers(1, 3)


def groups_of(layout, axes=MESH_AXES):
    """Return every group along the given axes, named after them."""
    return [
        NamedGroup(frozenset([Axis(axis)]), members)
        for axis in axes
        for members in layout.groups(axis)
    ]


@given(SIZES, SIZES, SIZES, SIZES, st.sampled_from(list(permutations(MESH_AXES))))
def test_every_mesh_is_found_again(tp, pp, dp, cp, order):
    """Some orders or sizes of a mesh would give other coordinates."""
    layout = ParallelLayout(tp=tp, pp=pp, dp=dp, cp=cp, order="-".join(order))
    found, _ = infer_layout(groups_of(layout), layout.world_size)
    if layout.world_size == 1:
        assert found is None
        return
    assert found is not None
    ranks = range(layout.world_size)
    assert [found.coordinates(rank) for rank in ranks] == [layout.coordinates(r) for r in ranks]


@given(SIZES, SIZES, SIZES, st.sampled_from(list(permutations(MESH_AXES))), st.data())
def test_groups_of_one_rank_are_enough(tp, pp, dp, order, data):
    """A partial capture would have no mesh."""
    layout = ParallelLayout(tp=tp, pp=pp, dp=dp, order="-".join(order))
    rank = data.draw(st.integers(0, layout.world_size - 1))
    own = [group for group in groups_of(layout) if rank in group.ranks]
    found, _ = infer_layout(own, layout.world_size)
    if layout.world_size > 1:
        assert found is not None
        assert found.coordinates(rank) == layout.coordinates(rank)


MESH = ParallelLayout(tp=2, pp=2, dp=2)


@pytest.mark.parametrize(
    ("groups", "world_size", "reason"),
    [
        ([], 8, ""),
        ([NamedGroup(frozenset(), tuple(range(8)))], 8, ""),
        ([NamedGroup(frozenset([Axis.EP]), (0, 1))], 8, ""),
        (groups_of(MESH), 4, "beyond the 4"),
        (groups_of(MESH, ["tp"]), 8, "no mesh of 8 ranks agrees"),
        ([*groups_of(MESH), NamedGroup(frozenset([Axis.TP]), (0, 3))], 8, "no mesh of 8"),
        ([*groups_of(MESH), NamedGroup(frozenset([Axis.TP]), (0, 1, 2))], 8, "no mesh of 8"),
        ([*groups_of(MESH), NamedGroup(frozenset([Axis.TP, Axis.PP]), (0, 2))], 8, "no mesh of 8"),
    ],
    ids=["none", "unnamed", "expert", "beyond", "dp unnamed", "wrong", "uneven", "wrong pair"],
)
def test_no_mesh_is_better_than_a_wrong_one(groups, world_size, reason):
    """Ranks would be placed in stages where they are not."""
    layout, why = infer_layout(groups, world_size)
    assert layout is None
    assert reason in str(why)
    assert bool(reason) == bool(why)


def test_a_group_along_two_axes_must_agree_too():
    """The names of combined groups would not be checked."""
    both = frozenset([Axis.TP, Axis.PP])
    layout, _ = infer_layout([*groups_of(MESH), NamedGroup(both, (0, 1, 4, 5))], 8)
    assert layout == MESH


def test_groups_get_their_axis_from_the_mesh_that_is_found():
    """A group that spans several axes would be counted with the one in its name."""
    names = {
        "TENSOR_MODEL_PARALLEL_GROUP": [0, 1],
        "DATA_PARALLEL_GROUP_WITH_CP": [0, 2],
        "PIPELINE_MODEL_PARALLEL_GROUP": [0, 4],
        "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": [0, 1, 2, 3],
        "TENSOR_AND_CONTEXT_PARALLEL_GROUP": [2, 3],
        "EMBEDDING": [0, 6],
    }
    trace = with_inferred_layout(
        trace_of(
            run={"world_size": 8},
            group=[{"group_id": n, "ranks": r, "description": n} for n, r in names.items()],
        )
    )
    assert trace.layout == MESH
    axes = trace.frame("group")["axis"].astype(str).tolist()
    assert axes == ["tp", "dp", "pp", "ep", "tp", "other"]


def test_a_stated_mesh_stays():
    """Names would overrule what the run says of itself."""
    stated = ParallelLayout(tp=4, dp=2)
    group = [{"ranks": [0, 1], "description": "tp"}, {"ranks": [0, 2], "description": "dp"}]
    trace = trace_of(run={"world_size": 8}, layout=stated, group=group)
    assert with_inferred_layout(trace).layout == stated


def test_names_that_contradict_each_other_are_a_stated_limit():
    """A reader would not learn why stages are missing."""
    trace = trace_of(run={"world_size": 8}, group=[{"ranks": [0, 1], "description": "tp"}])
    assert any("mesh is not known" in limit for limit in texts(with_inferred_layout(trace).limits))


def test_words_of_names():
    """Combined groups would be taken for groups along one axis."""
    assert named_axes("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP") == {Axis.TP, Axis.DP, Axis.CP}
    assert named_axes("MODEL_PARALLEL_GROUP") == frozenset()


@given(SIZES, SIZES, SIZES, SIZES)
def test_shards_and_replicas_together_are_the_data_axis(pp, replicas, shards, tp):
    """Hybrid sharding has no group over the whole data axis; its mesh would not be known."""
    layout = ParallelLayout(pp=pp, dp=replicas * shards, tp=tp)
    groups = groups_of(layout, ("pp", "tp"))
    for members in layout.groups("dp"):
        lines = [members[at : at + shards] for at in range(0, len(members), shards)]
        lines += [members[at::shards] for at in range(shards)]
        groups += [NamedGroup(frozenset([Axis.DP]), line) for line in lines]
    found, why_not = infer_layout(groups, layout.world_size)
    if layout.world_size > 1:
        assert found is not None, why_not
        assert found.dp == layout.dp


@pytest.mark.parametrize(
    ("stages", "vpp"),
    [([[0, 2], [1, 3]], 2), ([[0, 3], [1, 2]], 2), ([[0], [1]], 1), ([[0, 1], [1]], 1)],
    ids=["round", "there and back", "one each", "not whole"],
)
def test_chunks_of_a_rank_are_read_off_its_passes(stages, vpp):
    """Fails when the bubble of a job without a mesh object is that of one chunk per rank."""
    spans = [
        {"rank": rank, "kind": "forward", "stage": stage, "chunk": at, "start_ns": 0, "dur_ns": 1}
        for rank, held in enumerate(stages)
        for at, stage in enumerate(held)
    ]
    sends = [
        {"rank": rank, "peer": 1 - rank, "direction": "send", "start_ns": 0, "end_ns": 1}
        for rank in (0, 1)
    ]
    trace = trace_of(
        run={"world_size": 2}, ranks=(0, 1), group=[{"ranks": [0, 1]}], span=spans, p2p=sends
    )
    assert with_inferred_layout(trace).layout == ParallelLayout(pp=2, vpp=vpp)
