"""Recorded groups by their places in the mesh."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from meshscope.analyze.explain.placement.crossing import Pattern, exits
from meshscope.analyze.explain.placement.members import (
    expert_places,
    places_of_ranks,
    ranks_of_places,
    recorded_members,
)
from meshscope.analyze.explain.placement.traffic import traffic_of
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.synthetic import SyntheticJob, generate
from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Axis

TWO_HOSTS = np.repeat([0, 1], 4)
MESH = ParallelLayout(dp=4, cp=2, ep=4, order="pp-cp-dp-tp")


@pytest.mark.parametrize("order", ["pp-dp-cp-tp", "tp-pp-dp-cp", "cp-tp-dp-pp"])
def test_places_do_not_depend_on_the_order(order):
    """Fails when a group is judged at coordinates that it does not have."""
    layout = ParallelLayout(tp=2, pp=3, dp=2, cp=2, order=order)
    usual = replace(layout, order="-".join(MESH_AXES))
    for rank, place in enumerate(places_of_ranks(layout).tolist()):
        assert usual.coordinates(place) == layout.coordinates(rank)
        assert ranks_of_places(layout)[place] == rank


def test_sums_over_replicas_and_parts_of_the_sequence_cross_once():
    """Fails when gradients that are summed over dp and cp at once are judged by groups of replicas, which stay on a host."""
    layout = ParallelLayout(dp=4, cp=2, order="pp-cp-dp-tp")
    assert exits(layout, TWO_HOSTS, Axis.DP, Pattern.RING).tolist() == [0, 0]
    both = recorded_members(layout, [(range(8), 800.0)])
    assert exits(layout, TWO_HOSTS, Axis.DP, Pattern.RING, both).tolist() == [1, 1]
    # Members of a quarter of the bytes each.
    pairs = recorded_members(layout, [((0, 4), 600.0), ((1, 2, 3), 200.0)])
    assert exits(layout, TWO_HOSTS, Axis.DP, Pattern.RING, pairs).tolist() == [3, 3]


def with_groups(*groups):
    """Return a capture of the mesh with these groups of experts."""
    trace = generate(SyntheticJob(layout=replace(MESH, ep=1), steps=3))[0]
    rows = [{"group_id": f"e{at}", "axis": "ep", "ranks": [*own]} for at, own in enumerate(groups)]
    table = TABLES["group"].conform(pa.Table.from_pylist(rows)) if rows else None
    tables = {**trace.tables, "group": table} if rows else trace.tables
    return replace(trace, layout=MESH, tables=tables, _frames={})


@pytest.mark.parametrize(
    ("groups", "places"),
    [
        ([], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        # Ranks 0 to 3 are the replicas of the first part of the sequence.
        ([(0, 1, 2, 3)], [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ([(0, 3, 4, 7), (1, 2, 5, 6)], [[0, 1, 6, 7], [2, 3, 4, 5]]),
        ([(0, 3, 4, 7)], None),
    ],
    ids=["none", "replicas first", "recorded", "unknown"],
)
def test_experts_are_where_their_groups_were_recorded(groups, places):
    """Fails when experts are judged by groups that the job does not have."""
    found = expert_places(with_groups(*groups))
    assert (found if found is None else found.tolist()) == places


def test_traffic_has_the_recorded_groups():
    """Fails when the price of an order forgets which ranks a job joined."""
    account = measure(generate(SyntheticJob(layout=ParallelLayout(tp=2, dp=4), steps=3))[0])
    by_axis = {one.axis: one for one in traffic_of(account)}
    (members,) = by_axis[Axis.DP].members
    assert sorted(map(tuple, members.places.tolist())) == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert members.weight == pytest.approx([1, 1])
