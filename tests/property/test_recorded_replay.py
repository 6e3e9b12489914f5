"""Replays of recorded runs: nothing changed gives what was recorded, whatever the jitter."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.replay.program import build_program
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.formulas.schedules import fill_and_drain_frac
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

SEEDS = st.integers(0, 2**32 - 1)
LAYOUTS = st.sampled_from(
    [
        ParallelLayout(tp=2, pp=2),
        ParallelLayout(pp=3, dp=2),
        ParallelLayout(dp=3),
        ParallelLayout(pp=2, dp=2, order="dp-pp-cp-tp"),
    ]
)
JOBS = st.builds(
    Job,
    layout=LAYOUTS,
    microbatches=st.integers(1, 4),
    steps=st.integers(1, 4),
    wire_ns=st.integers(0, 5 * MS),
    schedule=st.sampled_from(["1f1b", "gpipe"]),
)


def noisy(seed):
    """Return work that differs from item to item by a factor of up to three."""

    def work(kind, rank, step, microbatch):
        key = [seed, kind == "forward", rank, step, microbatch]
        return int(np.random.default_rng(key).integers(10 * MS, 30 * MS))

    return work


def program_of(trace):
    """Return the program of a capture."""
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    return build_program(windows, events, build_ledger(trace, windows, events))


def times(program, extra=None):
    """Return replayed times of all marks, with time added to one edge."""
    weights = program.base_ns.copy()
    if extra is not None:
        weights[extra[0] % len(weights)] += extra[1]
    found = program.graph.replay(weights, np.zeros((len(weights), 1)), np.ones((1, 1)))
    return found[: len(program.marks), 0]


def with_source(trace, source):
    """Return the capture as if its communication times came from somewhere else."""
    tables = dict(trace.tables)
    for name in ("collective", "p2p"):
        frame = trace.frame(name).assign(source=source)
        tables[name] = TABLES[name].conform(pa.Table.from_pandas(frame, preserve_index=False))
    return replace(trace, tables=tables, _frames={})


@settings(max_examples=12)
@given(JOBS, SEEDS, st.sampled_from(["host_blocking", "imported"]))
def test_nothing_changed_gives_the_recorded_times(job, seed, source):
    """Every gain would be measured from a run that never happened."""
    program = program_of(with_source(capture(job, noisy(seed)), source))
    assert times(program) == pytest.approx(program.marks["end_ns"].to_numpy(), abs=1e-3)


@settings(max_examples=10)
@given(JOBS, SEEDS, st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_work_anywhere_makes_nothing_earlier(job, seed, edge, extra_ns):
    """A fault could seem to speed the job up."""
    program = program_of(capture(job, noisy(seed)))
    later = times(program, extra=(edge, extra_ns))
    assert (later >= times(program) - 1e-3).all()


@settings(max_examples=4)
@given(LAYOUTS, SEEDS, st.integers(1, 50))
def test_a_job_that_is_twice_as_slow_has_the_same_shares(layout, seed, wire_tenths_ms):
    """Results would depend on the unit of time."""
    work, wire_ns = noisy(seed), wire_tenths_ms * MS // 10
    once = Job(layout=layout, steps=3, wire_ns=wire_ns, optimizer_ns=MS)
    twice = Job(layout=layout, steps=3, wire_ns=2 * wire_ns, optimizer_ns=2 * MS)
    first = diagnose(capture(once, lambda *item: work(*item) // 2 * 2))
    second = diagnose(capture(twice, lambda *item: work(*item) // 2 * 4))
    assert second.step_time_ns == 2 * first.step_time_ns
    assert [bar.frac for bar in second.waterfall] == [bar.frac for bar in first.waterfall]
    assert [c.share_frac for c in second.causes] == pytest.approx(
        [c.share_frac for c in first.causes], abs=1e-12
    )


@settings(max_examples=4)
@given(SEEDS, st.permutations(range(4)))
def test_names_of_groups_decide_nothing(seed, order):
    """A group would be blamed for its place in the alphabet."""
    trace = capture(Job(layout=ParallelLayout(tp=2, pp=2), steps=3), noisy(seed))
    names = sorted(trace.frame("group")["group_id"].astype(str))
    renamed = dict(zip(names, [f"x{position}" for position in order], strict=False))
    tables = dict(trace.tables)
    for name in ("collective", "p2p", "group"):
        frame = trace.frame(name)
        frame = frame.assign(group_id=frame["group_id"].astype(str).map(renamed))
        tables[name] = TABLES[name].conform(pa.Table.from_pandas(frame, preserve_index=False))
    first, second = diagnose(trace), diagnose(replace(trace, tables=tables, _frames={}))
    assert [bar.frac for bar in first.waterfall] == [bar.frac for bar in second.waterfall]
    assert [c.share_frac for c in first.causes] == pytest.approx(
        [c.share_frac for c in second.causes], abs=1e-12
    )


@settings(max_examples=8)
@given(
    st.integers(2, 5),
    st.integers(1, 8),
    st.sampled_from(["gpipe", "1f1b"]),
    st.integers(1, 40),
)
def test_bubble_of_equal_stages_is_the_textbook_one(stages, microbatches, schedule, tenths_ms):
    """Waiting that the schedule imposes would be blamed on a rank or a stage."""
    layout = ParallelLayout(pp=stages)
    job = Job(
        layout=layout,
        microbatches=microbatches,
        steps=4,
        schedule=schedule,
        wire_ns=0,
        optimizer_ns=0,
    )
    work = tenths_ms * MS // 10
    result = diagnose(capture(job, uniform(work, 2 * work)))
    ideal = fill_and_drain_frac(stages, microbatches)
    assert result.bubble.measured_frac == pytest.approx(ideal, abs=1e-9)
    assert result.step_time_ns == pytest.approx((microbatches + stages - 1) * 3 * work)
    assert all(abs(cause.share_frac) < 1e-9 for cause in result.causes)
