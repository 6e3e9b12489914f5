"""A host whose ranks are a whole stage."""

import pytest
from tests.messages import of_code, values_of
from tests.synthetic import MS, Job
from tests.unit.analyze.findings.rules.test_starved import on_one_host

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault, truth_of
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind


def stage_finding(ranks_per_host, fault="slow_stage:stage=2,factor=1.5"):
    """Return the finding of a heavy stage of a job of two ranks a stage."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=4),
        schedule=ScheduleKind.ONE_F_ONE_B,
        microbatches=8,
        steps=8,
        ranks_per_host=ranks_per_host,
        faults=(parse_fault(fault),),
    )
    (found,) = (f for f in diagnose(generate(job)[0]).findings if f.kind == "stage_imbalance")
    return found


def test_a_stage_that_is_a_host_is_reported_as_either():
    """Fails when layers are moved away from a stage whose host is slow, or nothing says that it may be."""
    found = stage_finding(2)
    assert found.where["stage"] == 2
    assert found.where["host"] == "host0002"
    same = values_of(found.evidence, "stage_or_host.same_ranks")
    assert (same["stage"], same["host"], len(same["ranks"])) == (2, "host0002", 2)
    ratios = values_of(found.evidence, "stage_or_host.ratios")["ratios"]
    assert "forward 1.50 x" in map(str, ratios)
    assert str(found.remedy).startswith("First compare the layers")
    assert "host host0002 is slow" in str(found.remedy)
    assert str(found.remedy).endswith("Move layers away from stage 2")


@pytest.mark.parametrize("ranks_per_host", [1, 4, 8])
def test_a_stage_that_is_no_host_is_a_stage(ranks_per_host):
    """Fails when a host is suspected that runs another stage as well, or a part of this one only."""
    found = stage_finding(ranks_per_host)
    assert "host" not in found.where
    assert str(found.remedy).startswith("Move layers away from stage 2")


@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("first_step", [0, 4])
def test_a_slow_host_that_is_a_stage_has_its_own_price(dp, first_step):
    """Fails when the repair of a slow host is priced as layers that move, which returns half of it."""
    ranks = range(4, 6)
    job = SyntheticJob(
        layout=ParallelLayout(tp=2 // dp, pp=4, dp=dp),
        schedule=ScheduleKind.ONE_F_ONE_B,
        microbatches=8,
        steps=12,
        jitter_cv=0.01,
        ranks_per_host=2,
        faults=tuple(
            parse_fault(f"slow_rank:rank={rank},factor=1.5,first_step={first_step}")
            for rank in ranks
        ),
    )
    trace, truth = generate(job)[0], truth_of(job)
    result = diagnose(trace)
    true_gain = truth.joint_ns / truth.step_time_ns
    (cause,) = (own for own in result.causes if own.kind == "stage_imbalance")
    assert cause.gain_as_host_frac == pytest.approx(true_gain, abs=0.005)
    (found,) = (own for own in result.findings if own.kind == "stage_imbalance")
    reported = values_of(found.evidence, "stage_or_host.gain")
    assert reported["gain"] == cause.gain_as_host_frac > 1.4 * cause.removal_gain_frac


@pytest.mark.parametrize("computes", [True, False])
def test_a_stage_that_stands_still_in_its_passes_is_not_called_too_large_first(computes):
    """Fails when who sleeps 20 ms in each pass of a stage is told to move layers, and nothing else."""
    job = Job(layout=ParallelLayout(pp=2), microbatches=4, steps=20)
    findings = on_one_host(
        job,
        lambda kind, rank, step, microbatch: (20 + 20 * rank) * MS,
        lambda rank: (20 + 20 * rank * computes) * MS,
        load=1.0,
    )
    found = next(one for one in findings if one.kind == "stage_imbalance")
    assert bool(of_code(found.evidence, "stage.cpu_time")) == (not computes)
    assert str(found.remedy).startswith("Find what blocks stage 1") == (not computes)
    assert "Move layers away from stage 1" in str(found.remedy)
