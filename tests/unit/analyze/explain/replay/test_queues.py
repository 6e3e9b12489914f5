"""Operations of one group that run one after the other."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.replay.program import build_program
from meshscope.analyze.explain.replay.queues import Queue
from meshscope.analyze.synthetic import Costs, SyntheticJob, make_simulation, record
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

MS = 1_000_000
BUCKETS = 4
JOB = SyntheticJob(
    layout=ParallelLayout(dp=4),
    schedule=ScheduleKind.NONE,
    microbatches=1,
    layers=(24,),
    segments=8,
    dp_buckets=BUCKETS,
    overlap_dp=True,
    costs=Costs(dp_ns=60 * MS),
)


def program_of(job):
    """Return the program of a job."""
    trace = record(make_simulation(job))
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    return build_program(windows, events, build_ledger(trace, windows, events))


def test_buckets_that_are_issued_together_run_one_after_the_other():
    """Fails when each is thought to need the longer the more of them are on the wire before it."""
    program = program_of(JOB)
    assert len(program.queue.join) == (BUCKETS - 1) * JOB.steps
    assert np.unique(program.queue.ns).tolist() == [15 * MS]
    assert np.unique(program.wire_ns).tolist() == [15 * MS]


@pytest.mark.parametrize("change", [{"overlap_dp": False}, {"dp_buckets": 1}], ids=str)
def test_operations_that_are_waited_for_in_turn_need_no_queue(change):
    """Fails when the graph of a blocking program grows for nothing."""
    assert not len(program_of(replace(JOB, **change)).queue.join)


def test_a_fast_transfer_holds_nobody_up():
    """Fails when a bucket is said to begin before it was issued, or its wire is taken for shorter."""
    program = program_of(replace(JOB, costs=Costs(dp_ns=4 * MS)))
    assert np.unique(program.wire_ns).tolist() == [MS]
    assert np.unique(program.queue.ns).tolist() == [MS]


def test_the_recorded_times_come_out_of_the_graph():
    """Fails when nothing is changed and the step gets another length."""
    program = program_of(replace(JOB, jitter_cv=0.1, wire_cv=0.3))
    replayed = program.graph.replay(
        program.base_ns, np.zeros((program.edge_count, 1)), np.ones((1, 1))
    )
    marks = len(program.marks)
    assert np.abs(replayed[:marks, 0] - program.recorded_ns[:marks]).max() < 1e-3


@given(st.data())
def test_an_operation_begins_when_it_is_issued_and_what_runs_before_it_is_done(data):
    """Fails when chains are mixed up, or one that is issued late does not hold up those after it."""
    count = data.draw(st.integers(1, 12))
    issued = np.array(data.draw(st.lists(st.integers(0, 50), min_size=count, max_size=count)))
    rows = [
        (first, later, data.draw(st.integers(0, 20)))
        for first, later in zip(range(count - 1), range(1, count), strict=True)
        if data.draw(st.booleans())
    ]
    order = np.array(data.draw(st.permutations(range(count))))
    before, join, apart = (np.array([row[at] for row in rows], np.int64) for at in range(3))
    queue = Queue(order[before], order[join], before, apart.astype(float))
    expected = issued.astype(float)
    for first, later, ns in rows:
        expected[order[later]] = max(expected[order[later]], expected[order[first]] + ns)
    assert queue.begin(issued.astype(float)).tolist() == expected.tolist()
