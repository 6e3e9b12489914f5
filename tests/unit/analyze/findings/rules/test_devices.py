"""Findings on devices that run below their normal clock, from runs on disk."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.host_tables import HOST_TABLES
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(pp=2, dp=4)
EVEN = uniform(10 * MS, 20 * MS)
COLD, HOT = 1.9e9, 1.2e9


def table(name, rows):
    """Return a host table of the given rows."""
    return HOST_TABLES[name].conform(pa.Table.from_pylist(rows))


def with_devices(trace, slow=(), mask=0x40):
    """Return the capture with samples of its devices: eight on two hosts, some held back."""
    frame = trace.frame("step")
    begin, end = int(frame["start_ns"].min()), int((frame["start_ns"] + frame["dur_ns"]).max())
    host = {rank: f"node{rank // 4}" for rank in trace.ranks}
    samples = [
        {
            "host": host[rank],
            "uuid": f"GPU-{rank}",
            "time_ns": int(time_ns),
            "sm_util_frac": 1.0,
            "clock_hz": HOT if rank in slow else COLD,
            "throttle_mask": mask if rank in slow else 0,
            "temperature_c": 91.0 if rank in slow else 60.0,
        }
        for rank, time_ns in itertools.product(trace.ranks, np.linspace(begin, end, 20))
    ]
    devices = [{"host": host[r], "uuid": f"GPU-{r}", "name": "H100"} for r in trace.ranks]
    joined = [
        {"rank": r, "host": host[r], "uuid": f"GPU-{r}", "evidence": "stated"} for r in trace.ranks
    ]
    return trace.with_tables(
        {
            "device_sample": table("device_sample", samples),
            "device": table("device", devices),
            "rank_device": table("rank_device", joined),
        }
    )


def job(slow=()):
    """Return a capture of eight ranks, of which some work as long as a hot device takes."""

    def work(kind, rank, step, microbatch):
        return int(EVEN(kind, rank, step, microbatch) * (COLD / HOT if rank in slow else 1.0))

    return capture(Job(layout=LAYOUT, steps=8), work)


def kinds(trace):
    """Return the kinds of the findings about ranks and clocks."""
    wanted = ("clock_throttle", "straggler_rank")
    return [f.kind.value for f in diagnose(trace).findings if f.kind in wanted]


def throttles(trace):
    """Return the findings on clocks."""
    return [f for f in diagnose(trace).findings if f.kind == "clock_throttle"]


def test_a_hot_device_is_named_with_what_it_costs():
    """Fails when a straggler is named and the reason for it, which was measured, is not."""
    trace = with_devices(job({5}), {5})
    (finding,) = throttles(trace)
    (cause,) = [c for c in diagnose(trace).causes if c.kind == "clock_throttle"]
    assert finding.where == {"rank": 5, "host": "node1", "stage": 1, "steps": [1, 7]}
    assert (finding.cost_frac, finding.removal_gain_frac) == (
        cause.share_frac,
        cause.removal_gain_frac,
    )
    assert kinds(trace) == ["clock_throttle"]
    assert finding.claim.code == "clock_throttle.slow"
    assert finding.claim.values["reasons"] == ["hardware thermal slowdown"]
    assert finding.claim.values["ratio"] == pytest.approx(0.63, abs=0.005)
    healthy = diagnose(job()).step_time_ns
    gain = 1.0 - healthy / diagnose(trace).step_time_ns
    assert finding.removal_gain_frac == pytest.approx(gain, rel=1e-6)
    assert "at most 91 °C" in str(finding.evidence[0])
    assert "cooling" in str(finding.remedy)


def test_healthy_devices_give_no_finding():
    """Fails when every run with samples is said to have slow clocks."""
    assert throttles(with_devices(job())) == []
    assert throttles(job({5})) == []


def test_a_slow_clock_without_a_reason_is_a_setting():
    """Fails when a device locked to a low clock is missed, or called hot."""
    (finding,) = throttles(with_devices(job({2}), {2}, mask=0))
    assert finding.where["rank"] == 2
    assert "gives no reason" in str(finding.claim)
    assert "clock settings" in str(finding.remedy)


def test_the_devices_of_one_host_are_one_finding():
    """Fails when one bad power supply is eight findings."""
    trace = with_devices(job({4, 5, 6, 7}), {4, 5, 6, 7}, mask=0x80)
    (finding,) = throttles(trace)
    assert finding.where == {"host": "node1", "ranks": [4, 5, 6, 7], "steps": [1, 7]}
    assert finding.claim.values["reasons"] == ["power brake"]
    assert finding.cost_frac > 0.1
    assert len(finding.evidence) == 4


def test_a_slow_clock_that_makes_nobody_slower_costs_nothing():
    """Fails when a clock is billed for time that the rank did not take."""
    (finding,) = throttles(with_devices(job(), {5}))
    assert (finding.cost_frac, finding.severity) == (0.0, "info")
    assert kinds(with_devices(job(), {5})) == ["clock_throttle"]


def test_all_devices_held_back_alike_have_no_cost_to_tell():
    """Fails when a cost is made up where no peer shows what a full clock would return."""
    (finding,) = {f.cost_frac: f for f in throttles(with_devices(job(), range(8)))}.values()
    assert finding.cost_frac is None
    assert finding.claim.code.startswith("clock_throttle.held_back")


def test_devices_at_their_power_cap_are_as_designed():
    """Fails when every busy device is a finding because it reaches its limit."""
    trace = with_devices(job(), set(range(8)), mask=0x04)
    assert throttles(trace) == []
