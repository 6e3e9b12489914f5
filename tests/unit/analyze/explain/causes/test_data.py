"""A rank that is blocked or slow while its microbatches differ: both have their own price."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze import diagnose
from meshscope.analyze.explain.causes import Passes, sequence_effect
from meshscope.analyze.explain.causes.data import excess_of_sequences
from meshscope.analyze.explain.causes.effects import place_work
from meshscope.analyze.explain.slow_ranks.suspicion import steps_of_slow
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind


def true_gains(truth):
    """Return what the step gets shorter without each fault, as a share of it, by kind."""
    step_ns = truth.step_time_ns
    return {one.fault.kind.value: one.removal_gain_ns / step_ns for one in truth.faults}


@pytest.mark.parametrize(
    "layout",
    [ParallelLayout(pp=2, dp=4), ParallelLayout(tp=4, dp=2), ParallelLayout(dp=8)],
    ids=["two stages", "one stage", "replicas alone"],
)
def test_what_a_blocked_rank_loses_is_not_taken_for_long_sequences(layout):
    """The passes of a blocked rank would tell its replica that the data of these steps is larger."""
    blocked = parse_fault("blocked_rank:rank=3,extra_ms=3,every=3")
    faults = (blocked, parse_fault("sequence:cv=0.25"))
    job = SyntheticJob(layout=layout, steps=24, microbatches=8, jitter_cv=0.01, faults=faults)
    trace, truth = generate(job)
    gain = next(one.removal_gain_ns for one in truth.faults if one.fault == blocked)
    causes = [cause for cause in diagnose(trace).causes if cause.kind == "straggler_rank"]
    assert causes[0].where == {"rank": 3}
    (low, high) = causes[0].removal_gain_interval
    assert low < gain / truth.step_time_ns < high
    found = sum(cause.removal_gain_frac for cause in causes)
    assert found == pytest.approx(gain / truth.step_time_ns, abs=0.01)
    assert gain >= 0.02 * truth.step_time_ns


def test_a_rank_blocked_in_one_direction_is_reported_its_work_by_the_other():
    """A little blocking, hidden in unequal work, would be billed to the data of all replicas."""
    blocked = parse_fault("blocked_rank:rank=7,extra_ms=0.5,every=2")
    faults = (blocked, parse_fault("sequence:cv=0.4"))
    layout = ParallelLayout(dp=8)
    job = SyntheticJob(layout=layout, steps=24, microbatches=8, jitter_cv=0.01, faults=faults)
    trace, truth = generate(job)
    gain = {one.fault: one.removal_gain_ns / truth.step_time_ns for one in truth.faults}
    causes = {cause.kind: cause.removal_gain_frac for cause in diagnose(trace).causes}
    assert causes["straggler_rank"] == pytest.approx(gain[blocked], abs=0.005)
    assert causes["sequence_imbalance"] == pytest.approx(gain[faults[1]], abs=0.01)


def test_a_rank_that_is_slow_in_both_directions_tells_nothing_by_its_ratio():
    """A slow device would be taken for one with longer sequences."""
    slow = parse_fault("slow_rank:rank=2,factor=1.2,every=2")
    layout = ParallelLayout(dp=8)
    faults = (slow, parse_fault("sequence:cv=0.1"))
    job = SyntheticJob(layout=layout, steps=24, microbatches=8, jitter_cv=0.01, faults=faults)
    trace, truth = generate(job)
    gain = next(one.removal_gain_ns for one in truth.faults if one.fault == slow)
    causes = {cause.kind: cause.removal_gain_frac for cause in diagnose(trace).causes}
    assert causes["straggler_rank"] == pytest.approx(gain / truth.step_time_ns, abs=0.01)


def test_evening_out_the_data_is_priced_by_the_mean_microbatch_of_the_job():
    """Fails when the replicas without the slow rank, or that rank's own passes, say what work is usual."""
    faults = (
        parse_fault("blocked_rank:rank=1,extra_ms=10,every=3"),
        parse_fault("sequence:cv=0.4"),
    )
    job = SyntheticJob(
        layout=ParallelLayout(pp=2, dp=4),
        schedule=ScheduleKind.GPIPE,
        steps=24,
        microbatches=8,
        jitter_cv=0.01,
        faults=faults,
    )
    trace, truth = generate(job)
    causes = {cause.kind: cause.removal_gain_frac for cause in diagnose(trace).causes}
    true = true_gains(truth)
    assert causes["sequence_imbalance"] == pytest.approx(true["sequence"], abs=0.004)
    assert causes["straggler_rank"] == pytest.approx(true["blocked_rank"], abs=0.004)


def test_the_replica_of_a_slow_rank_is_late_for_its_sake():
    """Fails when a rank that waits for a slow one, and has more work by chance, is blamed for being late.

    Nor is the data cheaper on the slow rank, which takes longer for long microbatches too.
    """
    faults = (parse_fault("slow_rank:rank=6,factor=1.5"), parse_fault("sequence:cv=0.4"))
    job = SyntheticJob(
        layout=ParallelLayout(pp=2, dp=4),
        schedule=ScheduleKind.ZB_H1,
        steps=24,
        microbatches=8,
        jitter_cv=0.01,
        seed=16,
        faults=faults,
    )
    trace, truth = generate(job)
    causes = diagnose(trace).causes
    assert [c.where for c in causes if c.kind == "straggler_rank"] == [{"rank": 6}]
    (data,) = [c.removal_gain_frac for c in causes if c.kind == "sequence_imbalance"]
    assert data == pytest.approx(true_gains(truth)["sequence"], abs=0.004)


def test_more_work_and_a_slow_device_are_not_separated_without_another_rank():
    """Fails when one of two explanations of the same record is reported as if it were certain."""
    faults = (parse_fault("slow_rank:rank=6,factor=1.05"), parse_fault("sequence:cv=0.3"))
    job = SyntheticJob(
        layout=ParallelLayout(dp=8),
        steps=24,
        microbatches=16,
        jitter_cv=0.016,
        seed=148_803_771,
        faults=faults,
    )
    trace, truth = generate(job)
    result = diagnose(trace)
    (cause,) = [own for own in result.causes if own.kind == "sequence_imbalance"]
    low, high = cause.removal_gain_interval
    assert low < true_gains(truth)["sequence"] < cause.removal_gain_frac < high
    (reported,) = [own for own in result.findings if own.kind == "sequence_imbalance"]
    assert f"as little as {100 * low:.1f} %" in str(reported.evidence[-2])


def squares_beyond_mean(trace):
    """Return by how much the longest replica exceeds the mean one."""
    reported = trace.frame("microbatch")
    reported["replica"] = reported["rank"].map(lambda rank: trace.layout.coordinates(rank)["dp"])
    reported = reported.drop_duplicates(["step", "microbatch", "replica"])
    sums = reported.groupby(["step", "replica"])["sum_sq"].sum().unstack()
    return (sums.max(axis=1) / sums.mean(axis=1)).mean()


@pytest.mark.parametrize(
    ("layout", "microbatches"),
    [(ParallelLayout(dp=8), 16), (ParallelLayout(dp=2), 8), (ParallelLayout(pp=2, dp=2), 8)],
    ids=["dp8", "dp2", "pp2 dp2"],
)
def test_lengths_of_sequences_tell_more_work_from_a_slow_device(layout, microbatches):
    """Fails when what the training tells of its microbatches is not used to price data and ranks."""
    slow = layout.world_size - 1
    faults = (parse_fault(f"slow_rank:rank={slow},factor=1.05"), parse_fault("sequence:cv=0.3"))
    job = SyntheticJob(
        layout=layout,
        steps=24,
        microbatches=microbatches,
        jitter_cv=0.016,
        seed=148_803_771,
        faults=faults,
        tell_sequences=True,
    )
    trace, truth = generate(job)
    result = diagnose(trace)
    causes = {own.kind: own for own in result.causes}
    true = true_gains(truth)
    assert causes["straggler_rank"].where == {"rank": slow}
    assert causes["straggler_rank"].removal_gain_frac == pytest.approx(true["slow_rank"], abs=0.003)
    data = causes["sequence_imbalance"]
    assert data.removal_gain_frac == pytest.approx(true["sequence"], abs=0.002)
    assert data.removal_gain_interval is None
    (reported,) = [own for own in result.findings if own.kind == "sequence_imbalance"]
    lengths, longest = reported.evidence
    assert lengths.code == "sequence_imbalance.by_lengths"
    assert squares_beyond_mean(trace) == pytest.approx(longest.values["ratio"], abs=0.006)


@pytest.mark.parametrize("pp", [2, 4])
def test_a_stage_whose_only_rank_is_slow_still_follows_its_lengths(pp):
    """Fails when a stage without a healthy rank has no data, or a division by nothing reaches the user."""
    faults = (
        parse_fault("slow_rank:rank=1,factor=1.3,first_step=24"),
        parse_fault("sequence:cv=0.3"),
    )
    job = SyntheticJob(
        layout=ParallelLayout(pp=pp),
        steps=48,
        jitter_cv=0.01,
        seed=5,
        tell_sequences=True,
        faults=faults,
    )
    trace, truth = generate(job)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        causes = {own.kind: own.removal_gain_frac for own in diagnose(trace).causes}
    true = true_gains(truth)
    assert causes["sequence_imbalance"] == pytest.approx(true["sequence"], abs=0.002)
    assert causes["straggler_rank"] == pytest.approx(true["slow_rank"], abs=0.002)


def test_work_that_is_reported_in_part_leaves_the_rest_to_the_ranks():
    """Fails when data that no length tells, such as images, is noise because lengths are told."""
    reported, untold = parse_fault("sequence:cv=0.2"), parse_fault("sequence:cv=0.2,first_step=0")
    job = SyntheticJob(
        layout=ParallelLayout(pp=2, dp=2),
        steps=24,
        microbatches=8,
        jitter_cv=0.01,
        faults=(reported, untold),
        tell_sequences=True,
    )
    trace, truth = generate(job)
    in_part = generate(job.without(untold))[0].tables["microbatch"]
    assert not in_part.equals(trace.tables["microbatch"])
    trace = trace.with_tables({"microbatch": in_part})
    causes = {own.kind: own.removal_gain_frac for own in diagnose(trace).causes}
    true = truth.joint_ns / truth.step_time_ns
    assert causes["sequence_imbalance"] == pytest.approx(true, abs=0.005)
    assert true > 0.1


def test_where_all_ranks_are_slow_each_is_compared_with_itself():
    """Fails when a mean of no healthy pass reaches the user as a warning, or the causes as no number."""
    faults = tuple(parse_fault(f"slow_rank:rank={rank},factor=1.5,every=2") for rank in (0, 1))
    faults = (*faults, parse_fault("sequence:cv=0.1"))
    job = SyntheticJob(layout=ParallelLayout(dp=2), steps=24, microbatches=4, faults=faults)
    trace, _ = generate(job)
    account = measure(trace)
    work = place_work(trace, account.program, account.ledger)
    runs = steps_of_slow([0, 1], None)
    reported = Passes(trace, account.program.windows, account.ledger)
    effect = sequence_effect(trace, account.program, reported, work, runs)
    assert effect is not None
    assert np.isfinite(effect.effect_ns).all()


def job(passes=400, noise=0.0, slow=0.0, seed=3):
    """Return times of two stages, work and stage of each pass, and which are of healthy ranks."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(1000, 5000, passes).astype(float)
    work = np.stack([tokens, tokens * draw.uniform(50, 900, passes)], axis=-1)
    group = np.arange(passes) % 2
    fixed, by_token, by_square = np.array([[5e5, 3e2, 0.2], [2e6, 9e2, 0.1]])[group].T
    time = fixed + by_token * work[:, 0] + by_square * work[:, 1]
    time *= 1 + noise * draw.standard_normal(passes)
    healthy = np.arange(passes) % 8 > 1
    return np.where(healthy, time, time * (1 + slow)), work, group, healthy


def true_excess(work, group):
    """Return the ratio of each pass to that of the mean microbatch, by the same coefficients."""
    cost = np.array([[5e5, 3e2, 0.2], [2e6, 9e2, 0.1]])[group]
    own = cost[:, 0] + (cost[:, 1:] * work).sum(axis=1)
    return own / (cost[:, 0] + (cost[:, 1:] * work.mean(axis=0)).sum(axis=1)) - 1


def test_without_noise_the_excess_is_exact():
    """Fails when a pass of long sequences is told another length than theirs."""
    time, work, group, healthy = job()
    assert excess_of_sequences(time, work, group, healthy) == pytest.approx(
        true_excess(work, group), abs=1e-9
    )


def test_a_slow_rank_is_no_measure_of_the_work():
    """Fails when what a slow rank takes is taken for what its sequences need."""
    time, work, group, healthy = job(slow=0.5)
    assert excess_of_sequences(time, work, group, healthy) == pytest.approx(
        true_excess(work, group), abs=1e-9
    )


def test_a_pause_in_a_healthy_pass_is_left_out():
    """Fails when one pass of a second makes all others look short."""
    time, work, group, healthy = job(noise=0.01)
    time[[2, 3]] += 1e9
    found = excess_of_sequences(time, work, group, healthy)
    assert np.abs(found - true_excess(work, group)).max() < 0.02


def test_a_stage_that_nobody_measures_has_no_excess_of_its_own():
    """Fails when a stage without a telling pass is divided by nothing."""
    time, work, group, healthy = job()
    with np.errstate(all="raise"):
        found = excess_of_sequences(time, work, group, healthy & (group == 0))
    assert not found[group == 1].any()
    assert found[group == 0] == pytest.approx(true_excess(work, group)[group == 0], abs=1e-9)


@given(seed=st.integers(0, 10_000))
def test_noise_is_no_work(seed):
    """Fails when passes that do not follow their sequences are told to."""
    draw = np.random.default_rng(seed)
    _, work, group, healthy = job(seed=seed)
    time = 1e6 * (1 + 0.02 * draw.standard_normal(len(work)))
    found = excess_of_sequences(time, work, group, healthy)
    assert found is None or np.abs(found).max() < 0.03


@pytest.mark.parametrize("case", ["alike", "unknown", "nobody healthy"])
def test_nothing_is_said_where_nothing_tells(case):
    """Fails when equal, unknown or unmeasured work gives an excess."""
    time, work, group, healthy = job(noise=0.01)
    if case == "alike":
        work[:] = work[0]
    elif case == "unknown":
        work[5] = np.nan
    else:
        healthy[:] = False
    assert excess_of_sequences(time, work, group, healthy) is None
