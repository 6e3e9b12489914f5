"""Repairs of several ranks at once, against the job without their faults."""

from functools import cache

import pytest
from tests.synthetic import MS, Job, capture

from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.synthetic import (
    Costs,
    SyntheticJob,
    generate,
    make_simulation,
    parse_fault,
    truth_of,
)
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

COSTS = Costs(pp_ns=3 * MS, dp_ns=20 * MS)
PAIR, THREE = ParallelLayout(pp=2, dp=2), ParallelLayout(pp=2, dp=3)


@cache
def captured(layout, slow=()):
    """Return the capture of a job in which some ranks take 1.4 times as long."""

    def work(kind, rank, step, microbatch):
        even = 10 if kind == "forward" else 20
        return (14 if rank in slow else 10) * even * MS // 10

    return capture(Job(layout=layout, steps=5), work)


def predicted(trace, *fixes):
    """Return the prediction for a capture."""
    return predict(measure(trace), parse_changes(list(fixes), []))


def test_ranks_that_are_repaired_together_are_no_measure_for_each_other():
    """Fails when two slow ranks of three are brought halfway down, to the median of one and the healthy."""
    healthy = diagnose(captured(THREE)).step_time_ns
    trace = captured(THREE, slow=(3, 5))
    for fixes in (["rank=3", "rank=5"], ["stragglers"]):
        assert predicted(trace, *fixes).predicted_ns == pytest.approx(healthy, rel=1e-6)


def test_a_healthy_rank_that_is_repaired_too_is_not_made_slow():
    """Fails when it gets the work of the slow rank that is its only peer, and hides that one's gain."""
    healthy = diagnose(captured(PAIR)).step_time_ns
    result = predicted(captured(PAIR, slow=(2,)), "rank=2", "rank=3")
    assert result.predicted_ns == pytest.approx(healthy, rel=1e-6)
    assert any("No loss by rank=3 was found" in str(text) for text in result.assumptions)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("slow", [(), (2,), (3, 5), (1, 2, 4)], ids=str)
@pytest.mark.parametrize("rank", range(6))
def test_no_repair_of_a_rank_makes_the_step_longer(slow, rank):
    """Fails when a rank that is faster than its peers is called repaired by making it as slow."""
    assert predicted(captured(THREE, slow), f"rank={rank}").gain_frac >= -1e-9


def test_ranks_that_have_nobody_else_to_be_compared_with_are_named():
    """Fails when a host with all ranks of a stage is repaired for nothing without a word."""
    result = predicted(generate(_slow_host(8))[0], "host=host0001")
    assert result.gain_frac == pytest.approx(0, abs=1e-9)
    said = [str(text) for text in result.assumptions if "compared with each other" in str(text)]
    assert "ranks 8, 9, 10 and 11" in said[0]
    assert "--fix stage=" in said[0]


def test_a_host_that_is_a_whole_stage_gets_as_fast_as_the_others():
    """Fails when its repair returns nothing, or no more than moving its layers."""
    job = _slow_host(4)
    result = predicted(generate(job)[0], "host=host0001")
    truth = truth_of(job)
    assert result.gain_frac == pytest.approx(truth.joint_ns / truth.step_time_ns, abs=1e-3)
    assert any("host0001 is all of its stage" in str(text) for text in result.assumptions)
    assert not any("compared with each other" in str(text) for text in result.assumptions)


def test_what_two_slow_ranks_of_three_cost_is_theirs_in_the_diagnosis_too():
    """Fails when half of it is said to be the stage's and jitter's."""
    result = diagnose(captured(THREE, slow=(3, 5)))
    named = {cause.where.get("rank") for cause in result.causes if cause.share_frac > 0.01}
    assert named == {3, 5}
    both = predicted(captured(THREE, slow=(3, 5)), "rank=3", "rank=5")
    assert result.metrics["straggler_slowdown"] == pytest.approx(1 / (1 - both.gain_frac))


@pytest.mark.parametrize("fix", ["link=2<->4", "group=dp-2"])
def test_a_place_that_is_slow_now_and_then_is_repaired_as_asked(fix):
    """Fails when a link or group is left as it is because it is slow in too few steps to be certain."""
    axis, end = ("dp", "") if "group" in fix else ("pp", ",peer=4")
    slow = f"slow_link:axis={axis},rank=2{end},factor=4,first_step=1,every=3"
    layout = ParallelLayout(pp=4, dp=2)
    job = SyntheticJob(layout=layout, steps=6, costs=COSTS, faults=(parse_fault(slow),))
    healthy = SyntheticJob(layout=layout, steps=6, costs=COSTS)
    result = predicted(generate(job)[0], fix)
    assert result.predicted_ns == pytest.approx(_length(healthy), rel=1e-6)


def test_a_healthy_place_returns_nothing():
    """Fails when the noise of a link is called its fault."""
    job = SyntheticJob(layout=ParallelLayout(pp=4, dp=2), steps=6, costs=COSTS)
    result = predicted(generate(job)[0], "link=2->4")
    assert result.gain_frac == pytest.approx(0, abs=1e-9)
    assert any("No loss by link=2->4 was found" in str(text) for text in result.assumptions)


def _slow_host(ranks_per_host):
    """Return a job of four stages with a slow host."""
    return SyntheticJob(
        layout=ParallelLayout(pp=4, dp=4),
        ranks_per_host=ranks_per_host,
        steps=4,
        faults=(parse_fault("slow_rank:host=1,factor=1.3"),),
    )


def _length(job):
    """Return the step time of a job."""
    return float(list(make_simulation(job).steps())[-1].end.mean() / job.steps)


def test_a_repair_returns_what_the_diagnosis_says_it_does():
    """Fails when the two judge from different ranks what is usual, and tell two gains of one cause."""
    faults = ["slow_rank:rank=2,factor=1.05", "slow_rank:rank=5,factor=1.05", "sequence:cv=0.3"]
    job = SyntheticJob(
        layout=ParallelLayout(pp=4, dp=2, vpp=3),
        schedule=ScheduleKind.INTERLEAVED,
        microbatches=16,
        steps=6,
        jitter_cv=0.005,
        seed=605343771,
        faults=tuple(map(parse_fault, [*faults, "blocked_rank:rank=6,extra_ms=4"])),
    )
    account = measure(generate(job)[0])
    names = {"straggler_rank": "rank", "stage_imbalance": "stage"}
    reported = {}
    for cause in account.attribution.causes:
        where = names.get(cause.kind, "")
        if where in cause.where:
            reported[f"{where}={cause.where[where]}"] = cause.removal_gain_frac
        elif cause.kind in ("sequence_imbalance", "jitter"):
            reported[cause.kind] = cause.removal_gain_frac
    assert {"rank=6", "sequence_imbalance"} <= reported.keys()
    found = {fix: predict(account, parse_changes([fix], [])).gain_frac for fix in reported}
    assert found == pytest.approx(reported, abs=1e-9)
