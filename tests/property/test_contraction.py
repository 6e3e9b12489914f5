"""The contracted graph of a program against the whole one."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.replay.marks import END
from meshscope.analyze.explain.replay.program import build_program
from meshscope.analyze.explain.replay.scenarios import replay_scenarios, step_lengths
from meshscope.analyze.synthetic import SyntheticJob, make_simulation, record
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

JOBS = st.builds(
    SyntheticJob,
    layout=st.sampled_from(
        [
            ParallelLayout(tp=2, pp=2, dp=2),
            ParallelLayout(pp=3, dp=2),
            ParallelLayout(pp=2, dp=4, ep=2),
            ParallelLayout(dp=3),
        ]
    ),
    schedule=st.sampled_from([ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZB_H1]),
    microbatches=st.integers(1, 4),
    steps=st.integers(1, 3),
    segments=st.integers(1, 2),
    dp_buckets=st.integers(1, 3),
    overlap_dp=st.booleans(),
    jitter_cv=st.just(0.1),
    wire_cv=st.just(0.2),
    seed=st.integers(0, 1000),
)


def program_of(job, *, per_step_clock):
    """Return the program of a job."""
    trace = replace(record(make_simulation(job)), per_step_clock=per_step_clock)
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    return build_program(windows, events, build_ledger(trace, windows, events))


def by_the_whole_graph(program, effects, keep):
    """Return step times and waiting of every lane by the definition."""
    marks = program.marks
    ends = marks[(marks["mark"] == END) & ~marks["is_root"]]
    base = program.base_ns - effects.sum(axis=1)
    nodes = program.graph.replay(base, effects, keep)
    if program.windows.chained:
        first = ends.groupby("rank").head(1).index.to_numpy()
        skew = nodes[first] - nodes[first].mean(axis=0)
        recorded = program.recorded_ns[first]
        after = recorded - recorded.mean()
        # Only as much of it as the ranks have started the first step with.
        before = program.recorded_ns[program.graph.roots]
        share = np.sum(after * (before - before.mean())) / max(np.sum(after**2), 1e-300)
        shift = np.clip(share, 0, 1) * (skew - after[:, None])
        nodes = program.graph.replay(base, effects, keep, shift)
        last = ends.groupby("rank").tail(1).index.to_numpy()
        steps = (nodes[last] - nodes[program.graph.roots]).mean(axis=0) / len(program.windows.steps)
    else:
        start = marks[marks["is_root"]].groupby("step")["start_ns"].min().to_numpy(float)
        rows = ends.groupby("step").indices
        last = [nodes[ends.index.to_numpy()[rows[step]]].max(axis=0) for step in sorted(rows)]
        steps = (np.array(last) - start[:, None]).mean(axis=0)
    edge = np.full(len(marks), -1)
    edge[program.work_edges] = np.arange(len(program.work_edges))
    edge = edge[program.waits]
    before = nodes[program.waits - 1]
    arrived = before + base[edge, None] + effects[edge] @ keep
    join = marks["join"].to_numpy()[program.waits]
    begin_of = len(marks) + np.arange(program.joins)
    begin_of[program.queue.join] = len(marks) + program.joins + np.arange(len(program.queue.join))
    issued, begin = nodes[len(marks) + join], nodes[begin_of[join]]
    # Who need not wait for all, as the root of a broadcast, has a wire that is negative: it may be done before
    # the last has issued, but not where the operation began later, behind another.
    first = program.edge_count - len(program.waits)
    left = np.minimum(issued, begin + base[first:, None] + effects[first:] @ keep)
    count = len(program.windows.ranks) * len(program.windows.steps)
    return steps, np.clip(left - arrived, 0, None).sum(axis=0) / count


@settings(max_examples=15)
@given(JOBS, st.booleans(), st.integers(0, 2**32 - 1))
def test_it_gives_the_times_and_the_waiting_of_the_whole_graph(job, per_step_clock, seed):
    """Shares and gains would be those of another program."""
    program = program_of(job, per_step_clock=per_step_clock)
    random = np.random.default_rng(seed)
    recorded = program.base_ns[:, None]
    # Wires may even lose more than they have: then waits need nodes of their own.
    effects = recorded * random.uniform(-0.4, random.choice([0.3, 1.0]), (program.edge_count, 3))
    effects = np.where(random.random(effects.shape) < 0.5, effects, 0.0)
    # Repairs may make longer what took no time, too, between an issue and the wait for it.
    able = np.arange(len(program.work_edges))
    touched = able[random.random(len(able)) < (0.0 if job.overlap_dp else 0.05)]
    effects[touched] -= random.uniform(0.0, 1e6, (len(touched), 3))
    keep = random.integers(0, 2, (3, 5)).astype(float)
    times, waiting = replay_scenarios(program, effects, keep)
    expected, waited = by_the_whole_graph(program, effects, keep)
    scale = program.windows.step_time_ns / by_the_whole_graph(program, effects, np.ones((3, 1)))[0]
    assert np.allclose(times, expected * scale, rtol=1e-9)
    assert np.allclose(waiting, waited, rtol=1e-9, atol=1e-2)
    assert np.allclose(step_lengths(program, effects, keep).mean(axis=0), expected, rtol=1e-9)


def test_most_marks_of_a_blocking_program_are_no_nodes():
    """Analyses of large jobs would take the time and memory of the whole graph."""
    job = SyntheticJob(layout=ParallelLayout(tp=2, pp=2, dp=2), jitter_cv=0.1)
    program = program_of(job, per_step_clock=False)
    assert program.contraction.graph.node_count < program.graph.node_count / 2


def test_a_wait_for_what_was_issued_with_others_is_no_node():
    """Fails when a send, a receive and the waits for both are nodes: a pipeline has little else."""
    job = SyntheticJob(layout=ParallelLayout(tp=2, pp=4), jitter_cv=0.1)
    assert not len(program_of(job, per_step_clock=False).contraction.kept)
