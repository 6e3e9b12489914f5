"""Synthetic jobs: equal to the independent simulator, and paired with their clean twins."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import synthetic as independent

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate, parse_fault
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

LAYOUTS = st.sampled_from(
    [
        ParallelLayout(tp=2, pp=2, dp=2),
        ParallelLayout(pp=3, dp=2),
        ParallelLayout(dp=3),
        ParallelLayout(tp=3),
        ParallelLayout(tp=2, pp=2, dp=2, order="dp-pp-cp-tp"),
        ParallelLayout(tp=2, pp=4, order="tp-pp-cp-dp"),
    ]
)
SCHEDULES = st.sampled_from([ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B])
TIMES = st.integers(0, 3_000_000)


@st.composite
def pairs(draw):
    """Return a job and the same job for the independent simulator, with its work."""
    layout, schedule = draw(LAYOUTS), draw(SCHEDULES)
    segments, wire = draw(st.integers(1, 3)), draw(TIMES)
    forward, backward = (segments * draw(st.integers(1, 3_000_000)) for _ in range(2))
    optimizer = draw(TIMES)
    layers = tuple(draw(st.lists(st.integers(1, 3), min_size=layout.pp, max_size=layout.pp)))
    slow, factor = draw(st.integers(0, layout.world_size - 1)), draw(st.integers(1, 3))
    job = SyntheticJob(
        layout=layout,
        schedule=schedule,
        microbatches=draw(st.integers(1, 5)),
        steps=draw(st.integers(1, 3)),
        layers=layers,
        segments=segments,
        costs=Costs(
            layer_forward_ns=forward,
            layer_backward_input_ns=backward,
            layer_backward_weight_ns=0,
            optimizer_ns=optimizer,
            tp_ns=wire,
            pp_ns=wire,
            dp_ns=wire,
        ),
        faults=(parse_fault(f"slow_rank:rank={slow},factor={factor}"),),
    )
    # The independent simulator gives the optimizer of every rank the same time.
    other = independent.Job(
        layout=layout,
        microbatches=job.microbatches,
        steps=job.steps,
        segments=segments,
        wire_ns=wire,
        optimizer_ns=optimizer,
        schedule=str(schedule),
    )

    def work(kind, rank, step, microbatch):
        own = forward if kind == "forward" else backward
        times = factor if rank == slow else 1
        return own * layers[layout.coordinates(rank)["pp"]] * times

    if factor > 1:
        job = replace(job, costs=replace(job.costs, optimizer_ns=0))
        other = replace(other, optimizer_ns=0)
    return job, independent.capture(other, work)


def rows(trace, name, columns):
    """Return the rows of a table as sorted tuples."""
    frame = trace.frame(name)
    if "kind" in frame and name == "span":
        frame = frame[frame["dur_ns"] > 0]
    return sorted(frame[columns].astype(str).itertuples(index=False, name=None))


@settings(max_examples=40)
@given(pairs())
def test_it_agrees_with_the_independent_simulator(pair):
    """Two programs written apart would disagree by a nanosecond somewhere."""
    job, expected = pair
    trace, _ = generate(job)
    times = ["issue_ns", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns"]
    for name, columns in (
        ("step", ["rank", "step", "start_ns", "dur_ns"]),
        ("span", ["rank", "step", "kind", "microbatch", "start_ns", "dur_ns", "cpu_ns"]),
        ("collective", ["rank", "step", "group_id", "axis", "kind", "seq", *times]),
        ("p2p", ["rank", "step", "axis", "peer", "direction", "seq", *times]),
    ):
        assert rows(trace, name, columns) == rows(expected, name, columns), name


JOBS = st.builds(
    SyntheticJob,
    layout=st.sampled_from(
        [
            ParallelLayout(tp=2, pp=2, dp=2),
            ParallelLayout(pp=2, dp=4, ep=2),
            ParallelLayout(pp=2, dp=2, cp=2),
        ]
    ),
    schedule=SCHEDULES,
    microbatches=st.integers(2, 6),
    steps=st.integers(1, 3),
    segments=st.integers(1, 3),
    dp_buckets=st.integers(1, 3),
    overlap_dp=st.booleans(),
    jitter_cv=st.sampled_from([0.0, 0.05]),
    wire_cv=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 1000),
)
FAULTS = st.lists(
    st.sampled_from(
        [
            "slow_rank:rank=3,factor=1.4",
            "slow_rank:host=0,factor=1.2",
            "slow_stage:stage=1,factor=1.3",
            "heavy_head:extra_ms=0.5",
            "heavy_embedding:extra_ms=0.5",
            "slow_link:axis=dp,rank=0,factor=4",
            "slow_link:axis=pp,rank=0,extra_ms=1",
            "gc_pause:rank=2,extra_ms=5,first_step=1",
            "gc_pause:chance=0.2,extra_ms=1",
            "data_stall:rank=1,extra_ms=4",
            "checkpoint:extra_ms=3,every=2",
            "sequence:cv=0.3",
            "clock_drop:rank=1,factor=1.3,first_step=1",
            "blocked_rank:rank=2,extra_ms=7,every=2",
        ]
    ),
    max_size=4,
    unique=True,
)


@settings(max_examples=25)
@given(JOBS, FAULTS)
def test_a_step_is_as_long_as_the_truth_says(job, faults):
    """The known answer would belong to another job than the capture."""
    job = replace(job, faults=tuple(map(parse_fault, faults)), ranks_per_host=4)
    trace, truth = generate(job)
    ends = trace.frame("step").assign(end=lambda f: f["start_ns"] + f["dur_ns"])
    last = ends[ends["step"] == job.steps - 1]["end"]
    expected = last.max() if job.steps == 1 else last.mean() / job.steps
    assert truth.step_time_ns == pytest.approx(expected, rel=1e-12)
    clean = generate(job.without(*job.faults))[1]
    assert truth.clean_step_time_ns == clean.step_time_ns
    assert truth.joint_ns == truth.step_time_ns - clean.step_time_ns
    assert truth.joint_ns >= 0 or "sequence:cv=0.3" in faults
    for one in truth.faults:
        others = generate(job.without(one.fault))[1]
        assert one.removal_gain_ns == truth.step_time_ns - others.step_time_ns


@settings(max_examples=12)
@given(JOBS, st.integers(-1000, 1000))
def test_faults_of_the_record_cost_nothing(job, offset_ms):
    """A wrong clock or a lost record would seem to slow the job down."""
    skew = parse_fault(f"clock_skew:host=0,offset_ms={offset_ms}")
    lost = (parse_fault("missing_rank:rank=1"), parse_fault("missing_collectives:rank=2"))
    job = replace(job, faults=(skew, *lost), ranks_per_host=4)
    trace, truth = generate(job)
    assert truth.joint_ns == 0
    assert {one.removal_gain_ns for one in truth.faults} == {0}
    assert 1 not in trace.ranks
    assert 1 not in trace.frame("span")["rank"].to_numpy()
    assert 2 not in trace.frame("collective")["rank"].to_numpy()
    plain, _ = generate(job.without(*job.faults))
    clean = plain.frame("step").set_index(["rank", "step"])["start_ns"]
    shown = trace.frame("step").set_index(["rank", "step"])["start_ns"]
    moved = shown - clean.reindex(shown.index)
    host = shown.index.get_level_values("rank") < 4
    assert (moved[host] == offset_ms * 1_000_000).all()
    assert (moved[~host] == 0).all()


@settings(max_examples=6)
@given(JOBS)
def test_replaying_a_synthetic_capture_gives_its_times(job):
    """Attribution would start from times that never were."""
    result = diagnose(generate(job)[0])
    assert result.model_error_frac == pytest.approx(0, abs=1e-9)
    total = result.ledger.drop(columns=["rank", "step", "step_ns"]).sum(axis=1)
    assert np.allclose(total, result.ledger["step_ns"], rtol=1e-12)
