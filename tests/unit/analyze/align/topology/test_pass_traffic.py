"""Tensor and data parallelism known from the passes in which groups reduce."""

from itertools import pairwise, permutations

import pytest
from tests.tables import trace_of

from meshscope.analyze.align.topology.axes import with_axes
from meshscope.analyze.align.topology.group_traffic import connected, pipelines, traffic_axes
from meshscope.analyze.align.topology.layout import with_inferred_layout
from meshscope.probe.schema.layout import ParallelLayout

FORWARD_NS, BACKWARD_NS, AFTER_NS = 10, 110, 210


def job(layout, *, sends_on_world=False, kinds=("all_reduce",), forward_share=0.5, more=()):
    """Return a job whose groups have no names.

    A forward from 0 to 100 ns and a backward from 100 to 200 ns a rank. Tensor groups reduce 200 bytes,
    of which ``forward_share`` in the forward; data groups 1,000 bytes after both.

    Args:
        layout: Its mesh.
        sends_on_world: Stages send on the group of all ranks.
        kinds: How groups reduce.
        forward_share: See above.
        more: Further reductions after the backward: ranks and bytes.
    """
    world = tuple(range(layout.world_size))
    lines = {axis: list(layout.groups(axis)) for axis in ("tp", "pp", "dp")}
    reductions = [(ranks, FORWARD_NS, 200 * forward_share) for ranks in lines["tp"]]
    reductions += [(ranks, BACKWARD_NS, 200 * (1 - forward_share)) for ranks in lines["tp"]]
    reductions += [(ranks, AFTER_NS, 1000) for ranks in lines["dp"]]
    reductions += [(ranks, AFTER_NS, size) for ranks, size in more]
    links = [
        (ends, tuple(ranks))
        for ranks in lines["pp"]
        for pair in pairwise(ranks)
        for ends in (pair, pair[::-1])
    ]
    members = {world, *(tuple(ranks) for ranks, _, _ in reductions), *(r for _, r in links)}
    return trace_of(
        ranks=world,
        run={"world_size": len(world)},
        group=[{"group_id": str(ranks), "ranks": list(ranks)} for ranks in sorted(members)],
        collective=[
            {
                "rank": rank, "group_id": str(tuple(ranks)), "kind": kind, "issue_ns": at_ns,
                "start_ns": at_ns, "end_ns": at_ns + 1, "size_bytes": int(size),
                "seq": seq, "event_id": seq,
            }
            for seq, (ranks, at_ns, size) in enumerate(reductions)
            for rank in ranks
            for kind in kinds
        ],
        p2p=[
            {
                "rank": source, "peer": target, "direction": "send", "start_ns": 0, "end_ns": 1,
                "group_id": str(world if sends_on_world else ranks),
            }
            for (source, target), ranks in links
        ],
        span=[
            {"rank": rank, "kind": kind, "start_ns": start_ns, "dur_ns": 100}
            for rank in world
            for kind, start_ns in (("forward", 0), ("backward", 100))
        ],
    )  # fmt: skip


def layout_of(trace):
    """Return the mesh that is inferred."""
    return with_inferred_layout(with_axes(trace)).layout


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("order", ["-".join(order) for order in permutations(("pp", "dp", "tp"))])
@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 3, 1), (4, 1, 2), (1, 2, 2), (2, 1, 1)])
@pytest.mark.parametrize("sends_on_world", [False, True])
def test_a_mesh_without_any_name_is_found_again(sizes, order, sends_on_world):
    """A trainer that was written by hand would have no stages, no replicas and no bubble."""
    tp, pp, dp = sizes
    layout = ParallelLayout(tp=tp, pp=pp, dp=dp, order=f"{order}-cp")
    norm = [(range(layout.world_size), 4)] if dp > 1 or pp > 1 else []
    found = layout_of(job(layout, sends_on_world=sends_on_world, more=norm))
    assert found is not None
    ranks = range(layout.world_size)
    assert [found.coordinates(rank) for rank in ranks] == [layout.coordinates(r) for r in ranks]


@pytest.mark.parametrize(
    ("forward_share", "axis"), [(0.5, "tp"), (0.34, "tp"), (1.0, None), (0.2, None), (0.05, "dp")]
)
def test_the_share_in_the_forward_tells_the_axis(forward_share, axis):
    """A counter that every forward sums would be called tensor parallelism, or statistics of a batch."""
    found = traffic_axes(job(ParallelLayout(tp=2, dp=2), forward_share=forward_share))
    reported = found.get("(0, 1)")
    assert (reported.axis if reported else None) == axis


def test_sequence_parallelism_counts_as_tensor_parallelism():
    """Groups that scatter in place of reducing would lie on no axis."""
    layout = ParallelLayout(tp=2, dp=2)
    assert layout_of(job(layout, kinds=("reduce_scatter",))) == layout


def test_weights_that_two_stages_share_are_no_replicas():
    """The reduction of tied embeddings would make a data axis of the pipeline."""
    layout = ParallelLayout(pp=2, dp=2)
    assert layout_of(job(layout, more=[((0, 2), 900), ((1, 3), 900)])) == layout


def test_pairs_are_joined_to_lines():
    """Stages that send on the group of all ranks would be one pipeline of the whole job."""
    assert connected({(0, 2), (2, 0), (2, 4), (1, 3)}) == [(0, 2, 4), (1, 3)]
    assert pipelines(job(ParallelLayout(pp=3, dp=2), sends_on_world=True)) == [(0, 2, 4), (1, 3, 5)]
