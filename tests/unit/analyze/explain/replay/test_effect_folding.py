"""What causes add to the contracted graph is what they add to the whole one."""

import numpy as np
import pytest

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.replay import effect_folding
from meshscope.analyze.explain.replay.effect_folding import (
    MANY,
    EdgeEffect,
    EffectFolding,
    as_effects,
    edge_effect,
)
from meshscope.analyze.explain.replay.lanes import level_places
from meshscope.analyze.explain.replay.marks import END
from meshscope.analyze.explain.replay.program import build_program
from meshscope.analyze.synthetic import Costs, SyntheticJob, make_simulation, record
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

JOBS = {
    "pipeline": SyntheticJob(layout=ParallelLayout(tp=2, pp=4, dp=2), microbatches=6, steps=3),
    "queues": SyntheticJob(
        layout=ParallelLayout(dp=4),
        schedule=ScheduleKind.NONE,
        microbatches=1,
        layers=(24,),
        segments=8,
        dp_buckets=4,
        overlap_dp=True,
        costs=Costs(dp_ns=60_000_000),
    ),
}


@pytest.fixture(scope="module", params=JOBS)
def program(request):
    """Return the program of a job."""
    trace = record(make_simulation(JOBS[request.param]))
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    return build_program(windows, events, build_ledger(trace, windows, events))


@pytest.mark.parametrize("summands", [0, MANY, 1_000])
@pytest.mark.parametrize("touched", [0.0, 0.01, 0.3, 1.0])
def test_few_touched_rows_give_the_sums_of_all_rows(program, touched, summands, monkeypatch):
    """Fails when a cause is charged on the edges of another row, twice, or not at all."""
    monkeypatch.setattr(effect_folding, "MANY", summands)
    random = np.random.default_rng(7)
    contraction, marks = program.contraction, program.marks
    ends = contraction.origin(np.flatnonzero((marks["mark"] == END) & ~marks["is_root"]))
    left_out = program.waits[np.concatenate([contraction.chained, contraction.released])]
    work = random.uniform(-5, 9, len(marks)) * (random.random(len(marks)) < touched)
    work[left_out] = 0.0
    work[marks["is_root"].to_numpy()] = 0.0
    wires = len(program.wire_event)
    wire = random.uniform(0, 9, wires) * (random.random(wires) < touched)
    edges, late = contraction.fold(work, wire, ends)
    edges = edges[contraction.graph.edge]
    folding = EffectFolding(contraction, level_places(contraction.graph), ends)
    found = folding.fold(edge_effect(work), edge_effect(wire))
    for whole, part in zip((edges, late), found, strict=True):
        assert (np.diff(part.edge) > 0).all()
        assert dense(part, len(whole)) == pytest.approx(whole, abs=1e-6)


def dense(effect: EdgeEffect, count: int):
    """Return an effect as one value an edge."""
    values = np.zeros(count)
    effect.add_to(values)
    return values


def test_an_effect_is_added_where_it_is_and_nowhere_else():
    """Fails if an effect lands on another edge, or is lost."""
    weight = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    edge_effect([0.0, -7.0, 0.0, 8.0], first=1).add_to(weight)
    assert weight.tolist() == [1.0, 2.0, -4.0, 4.0, 13.0]


def test_a_part_counts_from_its_own_first_edge():
    """Fails if work and wires of an effect are separated at the wrong edge."""
    effect = edge_effect([5.0, 0.0, 6.0, 7.0, 0.0, 8.0])
    part = effect.part(2, 3)
    assert (part.edge.tolist(), part.ns.tolist()) == ([0, 1], [6.0, 7.0])
    assert effect.part(4, 1).is_nothing


def test_columns_of_a_matrix_are_effects():
    """Fails if a matrix of scenarios gives other effects than its columns alone."""
    first, second = as_effects(np.array([[0.0, 2.0], [3.0, 0.0]]))
    assert (first.edge.tolist(), first.ns.tolist()) == ([1], [3.0])
    assert (second.edge.tolist(), second.ns.tolist()) == ([0], [2.0])
