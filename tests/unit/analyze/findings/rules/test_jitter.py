"""Chance delays as an answer: what they cost, and what their remedies return."""

from dataclasses import replace

import numpy as np
import pytest
from tests.kineto_files import launched, step, write
from tests.synthetic import MS, Job, capture

from meshscope.analyze import load_trace
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.none_found import nothing_found
from meshscope.analyze.findings.rules.grading import by_certainty
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.analyze.tables.results import Finding
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import FindingKind, ScheduleKind, Severity

STEPS = 60


def one_late_rank_a_step(ranks, seed=7):
    """Return the diagnosis of a job of 30 ms steps in each of which one rank, any of them, is 15 ms late."""
    whose = np.random.default_rng(seed).integers(ranks, size=STEPS)

    def work(kind, rank, step, microbatch):
        late = 15 * MS if kind == "forward" and whose[step] == rank else 0
        return (10 if kind == "forward" else 20) * MS + late

    job = Job(layout=ParallelLayout(dp=ranks), microbatches=1, steps=STEPS)
    return diagnose(capture(job, work))


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_one_late_rank_a_step_is_jitter_at_its_whole_cost(ranks):
    """Fails when ranks are called slow for chance, or only what exceeds the mean of the ranks is counted."""
    result = one_late_rank_a_step(ranks)
    assert not [f for f in result.findings if f.kind == "straggler_rank"]
    (found,) = (f for f in result.findings if f.kind == "jitter")
    assert found.cost_frac == pytest.approx(15 * MS / result.step_time_ns, abs=0.01)
    assert found.severity is Severity.CRITICAL
    assert "jitter.gain_same_steps" in [fact.code for fact in found.evidence]
    assert "Swap no rank" in str(found.remedy)


def test_a_loss_without_a_finding_is_no_all_clear():
    """Fails when nothing is said to cost 1 % of the step beside a cause that does."""
    result = replace(one_late_rank_a_step(4), findings=())
    said = nothing_found(result)
    assert said.code == "none_found.no_place"
    assert "jitter 3" in str(said)


def finding(confidence, severity):
    """Return a finding of some certainty."""
    return Finding(
        kind=FindingKind.STRAGGLER_RANK,
        severity=severity,
        where={"rank": 1},
        claim="",
        cost_frac=0.3,
        removal_gain_frac=0.3,
        confidence=confidence,
        evidence=(),
        remedy="",
    )


@pytest.mark.parametrize(
    ("confidence", "graded"),
    [(0.49, Severity.WARNING), (0.0, Severity.INFO), (0.5, Severity.CRITICAL)],
)
def test_what_is_more_likely_wrong_than_right_is_not_critical(confidence, graded):
    """Fails when somebody is called out of bed for a guess."""
    assert by_certainty(finding(confidence, Severity.CRITICAL)).severity is graded
    assert by_certainty(finding(confidence, Severity.INFO)).severity is Severity.INFO


@pytest.mark.parametrize(("on_all", "share"), [(False, 0.75), (True, 1.0)])
def test_collecting_in_the_same_step_keeps_one_collection(on_all, share):
    """Fails when a remedy is promised what only a job without any collection would return."""
    faults = [
        f"gc_pause:extra_ms=400,every=4,first_step={rank}" + ("" if on_all else f",rank={rank}")
        for rank in (range(1) if on_all else range(4))
    ]
    job = SyntheticJob(
        layout=ParallelLayout(dp=4),
        schedule=ScheduleKind.NONE,
        microbatches=2,
        steps=24,
        faults=tuple(map(parse_fault, faults)),
    )
    result = diagnose(generate(job)[0])
    (cause,) = (c for c in result.causes if c.kind == "gc_pause")
    (found,) = (f for f in result.findings if f.kind == "gc_pause")
    assert found.removal_gain_frac == pytest.approx(share * cause.removal_gain_frac, abs=0.01)
    assert (found.remedy.code == "gc_pause.remedy_in_step") is not on_all


def test_one_step_does_not_tell_chance():
    """Fails when a single step is said to show a different rank late each time, by 0 ns, with confidence."""

    def work(kind, rank, step, microbatch):
        return (10 if kind == "forward" else 20) * MS + rank * MS

    job = Job(layout=ParallelLayout(dp=8), microbatches=1, steps=1)
    result = diagnose(capture(job, work))
    (found,) = (f for f in result.findings if f.kind == "jitter")
    assert found.claim.code == "jitter.claim_one_step"
    assert found.confidence < 0.5
    assert "jitter.latest" not in [fact.code for fact in found.evidence]
    assert str(found.remedy).startswith("Record")


def test_a_rank_that_is_slow_in_some_steps_is_not_late_by_chance():
    """Fails when the steps of a slow rank are counted among the delays that chance makes."""
    whose = np.random.default_rng(3).integers(8, size=STEPS)

    def work(kind, rank, step, microbatch):
        late = 4 * MS if whose[step] == rank else 0
        slow = 20 * MS if rank == 5 and step % 20 >= 10 else 0
        return (10 if kind == "forward" else 20) * MS + (late + slow if kind == "forward" else 0)

    job = Job(layout=ParallelLayout(dp=8), microbatches=1, steps=STEPS)
    result = diagnose(capture(job, work))
    (slow,) = (f for f in result.findings if f.kind == "straggler_rank")
    assert slow.where["rank"] == 5
    (found,) = (f for f in result.findings if f.kind == "jitter")
    (latest,) = (fact for fact in found.evidence if fact.code == "jitter.latest")
    assert latest.values["most_ns"] == pytest.approx(4 * MS, rel=0.05)


def test_few_steps_do_not_tell_a_slow_rank_from_chance():
    """Fails when a rank that is late in most of few noisy steps is hidden: "a different rank each time, swap no rank"."""
    late_ms = [[13, 6, 54, 10], [21, 4, 54, 4], [17, 23, 58, 4], [23, 25, 54, 4], [60, 9, 52, 30]]

    def work(kind, rank, step, microbatch):
        return 3 * MS + (late_ms[step][rank] * MS if kind == "forward" else 0)

    job = Job(layout=ParallelLayout(dp=4), microbatches=1, steps=len(late_ms))
    found = diagnose(capture(job, work)).findings[0]
    assert found.claim.code == "jitter.claim_few_steps"
    assert [fact.values["rank"] for fact in found.evidence if fact.code == "jitter.steady"] == [2]
    assert found.remedy.values == {"rank": 2}


def test_one_pause_in_few_steps_is_no_slow_rank():
    """Fails when the rank of a single long step is said to be late in most of them."""

    def work(kind, rank, step, microbatch):
        return (10 if kind == "forward" else 20) * MS + 80 * MS * (rank == 2 and step == 1)

    job = Job(layout=ParallelLayout(dp=4), microbatches=1, steps=4)
    codes = [found.claim.code for found in diagnose(capture(job, work)).findings]
    assert "jitter.claim_few_steps" not in codes


def test_the_only_rank_makes_no_others_wait(tmp_path):
    """Fails when unequal steps of one rank are the lateness of "a different rank each time"."""
    events, at = [], 0
    for number, length in enumerate((420_000, 20_000, 20_000, 20_000), start=1):
        events += [step(number, at, length), *launched("gemm", at, at + 10, 14_000, number)]
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        events += launched(name, at + 20, at + length - 5000, 2000, 100 + number)
        at += length
    result = diagnose(load_trace(write(tmp_path / "rank0.json", events)))
    (found,) = [one for one in result.findings if one.kind is FindingKind.JITTER]
    said = " ".join(map(str, (found.claim, *found.evidence, found.remedy)))
    assert "Steps differ in length" in said
    assert "Longest of 4 steps: step 1, 400 ms beyond the median step" in said
    assert "rank" not in said


def test_a_few_short_steps_of_the_only_rank_refuse_no_causes(tmp_path):
    """Fails when its steps are repaired to the longer ones: that loses time, so that no cause at all was reported."""
    events, at = [], 0
    for number, work in enumerate((14_000, 32_000, 41_000, 41_000, 32_000, 14_000), start=1):
        events += [step(number, at, work + 6000), *launched("gemm", at, at + 10, work, number)]
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        events += launched(name, at + 20, at + work + 1000, 2000, 100 + number)
        at += work + 6000
    result = diagnose(load_trace(write(tmp_path / "rank0.json", events)))
    assert not [limit for limit in result.limits if limit.code == "unknown.no_causes"]
    assert not [one for one in result.findings if one.kind is FindingKind.JITTER]
