"""Slow clocks as causes: against the same job at full clocks, to the nanosecond where it is exact."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate, parse_fault
from meshscope.probe.schema.host_tables import DEVICE_SAMPLE
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)
SLOW_RANKS = ("clock_throttle", "straggler_rank")
EXACT = {"abs": 1e-7}
"""Times are whole nanoseconds, clocks are not."""


def job(*faults, **settings):
    """Return a job with faults whose devices are sampled every ten milliseconds."""
    given = {"layout": LAYOUT, "steps": 8, "sample_interval_ns": 10_000_000} | settings
    return SyntheticJob(faults=tuple(map(parse_fault, faults)), **given)


def reported(made):
    """Return the diagnosis of a job, and what each of its faults returns if it is repaired."""
    trace, truth = generate(made)
    gains = {one.fault.kind.value: one.removal_gain_ns / truth.step_time_ns for one in truth.faults}
    return diagnose(trace), gains


def causes_of(result, *kinds):
    """Return the causes of some kinds, with their removal gains."""
    return {c.kind: c for c in result.causes if c.kind in (kinds or SLOW_RANKS)}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("factor", [1.05, 1.3, 2.0])
@pytest.mark.parametrize("layout", [LAYOUT, ParallelLayout(pp=4), ParallelLayout(dp=4)])
def test_repairing_a_clock_returns_what_the_full_clock_does(factor, layout):
    """Fails when a new fan is promised to return more or less than it does."""
    result, gains = reported(job(f"clock_drop:rank=1,factor={factor}", layout=layout))
    found = causes_of(result)
    assert list(found) == ["clock_throttle"]
    assert found["clock_throttle"].where == {"rank": 1, "host": "host0000"}
    gain = found["clock_throttle"].removal_gain_frac
    assert gain == pytest.approx(gains["clock_drop"], **EXACT)
    named = [f.kind.value for f in result.findings if f.kind.value in SLOW_RANKS]
    assert named == ["clock_throttle"]


def test_a_clock_that_falls_late_costs_what_its_steps_do():
    """Fails when a device is billed for the steps before it ran hot."""
    result, gains = reported(job("clock_drop:rank=5,factor=1.5,first_step=5", steps=10))
    (cause,) = causes_of(result).values()
    # The samples at the border belong to both sides: half an interval in five steps of 70 ms.
    assert cause.removal_gain_frac == pytest.approx(gains["clock_drop"], abs=0.01)
    (finding,) = [f for f in result.findings if f.kind == "clock_throttle"]
    assert finding.where["steps"][1] == 9
    assert finding.where["steps"][0] in (4, 5)


def test_a_rank_that_is_slow_for_two_reasons_has_both():
    """Fails when a slow host hides behind a slow clock, or is billed for it."""
    made = job("clock_drop:rank=5,factor=1.25", "slow_rank:rank=5,factor=1.4")
    result, gains = reported(made)
    found = causes_of(result)
    clock, slow = found["clock_throttle"], found["straggler_rank"]
    assert clock.removal_gain_frac == pytest.approx(gains["clock_drop"], **EXACT)
    # The optimizer of the slow rank is slow as well, and not by its clock.
    assert slow.removal_gain_frac == pytest.approx(gains["slow_rank"], abs=5e-3)
    joint = 1.0 - generate(made)[1].clean_step_time_ns / result.step_time_ns
    assert clock.share_frac + slow.share_frac == pytest.approx(joint, abs=5e-3)
    claims = {f.kind.value: f.claim for f in result.findings}
    assert claims["straggler_rank"].values["slower"] == pytest.approx(0.4, abs=0.005)


def test_a_slow_clock_on_a_heavy_stage():
    """Fails when the clock's part of a stage's extra work is billed to one of the two alone."""
    # The optimizer would be scaled along with its stage.
    plain = Costs(optimizer_ns=0)
    made = job("clock_drop:rank=5,factor=1.25", "heavy_head:extra_ms=1.0", costs=plain)
    result, gains = reported(made)
    found = causes_of(result, "clock_throttle", "stage_imbalance")
    clock = found["clock_throttle"].removal_gain_frac
    assert clock == pytest.approx(gains["clock_drop"], **EXACT)
    # A repaired stage keeps its work, which moves to the others.
    names = ("layer_forward_ns", "layer_backward_input_ns", "layer_backward_weight_ns")
    costs = replace(plain, **dict.fromkeys(names, 1_250_000))
    even = replace(made, faults=made.faults[:1], costs=costs)
    moved = 1.0 - generate(even)[1].step_time_ns / result.step_time_ns
    assert found["stage_imbalance"].removal_gain_frac == pytest.approx(moved, **EXACT)


def test_ranks_of_one_host_are_one_cause():
    """Fails when one broken fan is eight causes, none of which returns anything alone."""
    made = job("clock_drop:host=1,factor=1.3", layout=ParallelLayout(tp=2, dp=8), ranks_per_host=4)
    result, gains = reported(made)
    (cause,) = causes_of(result).values()
    assert cause.where == {"ranks": [4, 5, 6, 7], "host": "host0001"}
    assert cause.removal_gain_frac == pytest.approx(gains["clock_drop"], **EXACT)


def test_many_hosts_stay_few_causes():
    """Fails when a hall without cooling takes as many replays as it has hosts."""
    faults = [f"clock_drop:rank={rank},factor=1.3" for rank in range(0, 12, 2)]
    made = job(*faults, layout=ParallelLayout(dp=16), ranks_per_host=2, steps=4)
    result, _ = reported(made)
    clocks = [c for c in result.causes if c.kind == "clock_throttle"]
    assert sorted(len(c.where.get("ranks", [0])) for c in clocks) == [1, 1, 1, 1, 2]
    total = sum(c.share_frac for c in result.causes)
    joint = 1.0 - generate(made)[1].clean_step_time_ns / result.step_time_ns
    assert total == pytest.approx(joint, abs=1e-6)


def with_activity(trace, **columns):
    """Return a capture whose devices were counted: values of all samples."""
    rows = trace.frame("device_sample").assign(**columns)
    table = pa.Table.from_pandas(rows, preserve_index=False)
    return trace.with_tables({"device_sample": DEVICE_SAMPLE.conform(table)})


def test_what_memory_bounds_does_not_wait_for_the_clock():
    """Fails when a clock is billed for time in which the device waited for its memory."""
    trace, _ = generate(job("clock_drop:rank=5,factor=1.25", layout=ParallelLayout(pp=4, dp=2)))
    bound = with_activity(trace, dram_active_frac=0.9, tensor_active_frac=0.2)
    assert list(causes_of(diagnose(bound))) == ["straggler_rank"]
    free = with_activity(trace, dram_active_frac=0.3, tensor_active_frac=0.5)
    assert list(causes_of(diagnose(free))) == ["clock_throttle"]


def test_a_clock_is_billed_for_no_more_than_its_peers_show():
    """Fails when a clock that did not slow its rank down is given the time that others took."""
    slowed, _ = generate(job("clock_drop:rank=5,factor=1.1"))
    samples = slowed.frame("device_sample")
    own = samples["uuid"] == "GPU-000000000005"
    # The clock was at half, but the rank takes a tenth longer only.
    changed = samples["clock_hz"].mask(own, 0.99e9)
    result = diagnose(with_activity(slowed, clock_hz=changed))
    (cause,) = causes_of(result).values()
    repaired = generate(job())[1].step_time_ns
    gain = 1.0 - repaired / result.step_time_ns
    assert cause.kind == "clock_throttle"
    assert cause.removal_gain_frac == pytest.approx(gain, abs=2e-3)


def test_without_an_agent_a_hot_device_is_a_slow_rank():
    """Fails when a reason is named that nobody saw."""
    result, gains = reported(job("clock_drop:rank=5,factor=1.3", sample_interval_ns=0))
    (cause,) = causes_of(result).values()
    assert (cause.kind, cause.where) == ("straggler_rank", {"rank": 5})
    assert cause.removal_gain_frac == pytest.approx(gains["clock_drop"], abs=5e-3)


def test_shares_sum_to_the_loss_and_waits_to_the_measured_wait():
    """Fails when a clock is in no share, or in two."""
    made = job(
        "clock_drop:rank=5,factor=1.3",
        "clock_drop:rank=2,factor=1.1,first_step=3",
        "gc_pause:rank=1,extra_ms=9",
        jitter_cv=0.02,
        wire_cv=0.05,
    )
    result, _ = reported(made)
    account = result.waiting
    whole = account.bubble_ns + account.induced_ns + account.model_error_ns
    assert whole == pytest.approx(account.measured_ns, abs=1e-3)
    assert sum(c.induced_wait_ns for c in result.causes) == pytest.approx(
        account.induced_ns, abs=1e-3
    )
    assert result.model_error_frac == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("fix", ["rank=5", "clock_throttle", "stragglers", "host=host0001"])
def test_a_clock_can_be_repaired_in_a_what_if(fix):
    """Fails when a prediction leaves the clock of the repaired rank as it was."""
    made = job("clock_drop:rank=5,factor=1.3", ranks_per_host=4)
    trace, truth = generate(made)
    found = predict(measure(trace), parse_changes([fix], []))
    assert found.predicted_ns == pytest.approx(truth.clean_step_time_ns, rel=1e-6)


def test_a_job_of_one_rank_or_without_communication_survives():
    """Fails when samples break an account that has no replay."""
    for layout in (ParallelLayout(), ParallelLayout(dp=3)):
        made = job("clock_drop:rank=0,factor=1.3", layout=layout)
        trace = generate(made)[0]
        trace = replace(
            trace, tables={**trace.tables, "collective": trace.tables["collective"][:0]}
        )
        result = diagnose(trace)
        assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)
        assert not result.causes or np.isfinite([c.share_frac for c in result.causes]).all()
