"""Heavy chunks of ranks that hold several are told pass by pass."""

import pytest

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import Costs, Fault, FaultKind, SyntheticJob, generate, truth_of
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

LAYER_NS = 5_000_000


def job(schedule, fault, layer_ns=LAYER_NS, *, dp=2, vpp=2, steps=4, jitter_cv=0.0):
    """Return a job of four places, with two chunks each unless told otherwise."""
    return SyntheticJob(
        layout=ParallelLayout(pp=4, dp=dp, vpp=vpp),
        schedule=schedule,
        microbatches=8,
        steps=steps,
        jitter_cv=jitter_cv,
        costs=Costs(
            layer_forward_ns=layer_ns,
            layer_backward_input_ns=layer_ns,
            layer_backward_weight_ns=layer_ns,
        ),
        faults=fault,
    )


@pytest.mark.parametrize("schedule", [ScheduleKind.INTERLEAVED, ScheduleKind.ZB_V])
@pytest.mark.parametrize("stage", [0, 5, 7])
def test_a_heavy_chunk_costs_what_equal_chunks_return(schedule, stage):
    """Its excess would be spread over the light passes of its ranks, at half the price."""
    fault = Fault(kind=FaultKind.SLOW_STAGE, stage=stage, factor=1.8)
    result = diagnose(generate(job(schedule, (fault,)))[0])
    even = truth_of(job(schedule, (), round(LAYER_NS * (7 + 1.8) / 8)))
    truth = 1 - even.step_time_ns / result.step_time_ns
    (finding,) = [
        f for f in result.findings if f.kind in ("stage_imbalance", "embedding_imbalance")
    ]
    place = stage % 4 if schedule is ScheduleKind.INTERLEAVED or stage < 4 else 7 - stage
    assert finding.where == {"stage": place, "steps": [0, 3]}
    assert finding.removal_gain_frac == pytest.approx(truth, abs=0.005)
    assert not [f for f in result.findings if f.kind == "straggler_rank"]


@pytest.mark.parametrize("schedule", [ScheduleKind.INTERLEAVED, ScheduleKind.ZB_V])
def test_equal_chunks_have_no_heavy_stage(schedule):
    """Every run of an interleaved schedule would be called imbalanced."""
    causes = diagnose(generate(job(schedule, ()))[0]).causes
    stages = [cause.share_frac for cause in causes if cause.kind == "stage_imbalance"]
    assert all(abs(share) < 1e-6 for share in stages)


@pytest.mark.parametrize(
    ("schedule", "vpp", "dp", "every"),
    [
        (ScheduleKind.ONE_F_ONE_B, 1, 2, 2),
        *((ScheduleKind.INTERLEAVED, 2, dp, every) for dp, every in ((1, 4), (2, 2))),
        *((ScheduleKind.ZB_V, 2, dp, every) for dp, every in ((1, 4), (2, 2))),
    ],
)
def test_a_stage_that_is_heavy_at_times_costs_what_it_costs_in_these_steps(
    schedule, vpp, dp, every
):
    """Fails when its excess is that of the mean step, which is told at a third of its price."""
    size = {"dp": dp, "vpp": vpp, "steps": 12, "jitter_cv": 0.02}
    stages = 4 * vpp
    fault = Fault(kind=FaultKind.SLOW_STAGE, stage=stages - 1, factor=2.0, every=every)
    result = diagnose(generate(job(schedule, (fault,), **size))[0])
    usual = truth_of(job(schedule, (), **size)).step_time_ns
    even = truth_of(job(schedule, (), round(LAYER_NS * (stages + 1) / stages), **size)).step_time_ns
    repaired = (even + (every - 1) * usual) / every
    truth = 1 - repaired / result.step_time_ns
    (finding,) = [f for f in result.findings if f.kind != "pipeline_bubble"]
    assert finding.kind == "stage_imbalance"
    assert finding.where["stage"] == (0 if schedule is ScheduleKind.ZB_V else 3)
    assert finding.removal_gain_frac == pytest.approx(truth, abs=0.005)
    assert finding.cost_frac == pytest.approx(truth, abs=0.005)


def test_the_only_rank_of_a_stage_that_is_slow_at_times_is_a_slow_rank():
    """A split of the layers would be blamed for what is there in some steps only."""
    size = {"dp": 1, "vpp": 1, "steps": 12, "jitter_cv": 0.02}
    fault = Fault(kind=FaultKind.SLOW_STAGE, stage=3, factor=2.0, every=4)
    result = diagnose(generate(job(ScheduleKind.ONE_F_ONE_B, (fault,), **size))[0])
    usual = truth_of(job(ScheduleKind.ONE_F_ONE_B, (), **size)).step_time_ns
    (finding,) = [f for f in result.findings if f.kind != "pipeline_bubble"]
    assert (finding.kind, finding.where["rank"]) == ("straggler_rank", 3)
    truth = 1 - usual / result.step_time_ns
    assert finding.removal_gain_frac == pytest.approx(truth, abs=0.005)
