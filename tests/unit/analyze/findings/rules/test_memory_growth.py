"""What is said of memory that grows."""

import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.tables import trace_of

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.layout import ParallelLayout

GIB = 1 << 30
STEPS = 16


def finding_of(held, *, capacity=None):
    """Return what is said of the memory of a job whose ranks hold so many bytes by step."""
    job = capture(Job(layout=ParallelLayout(dp=2), steps=STEPS), uniform(10 * MS, 20 * MS))
    rows = [
        {
            "rank": rank, "step": step, "time_ns": step, "phase": "step_start",
            "rss_bytes": int(size(step)), "capacity_bytes": capacity,
        }
        for rank, size in enumerate(held)
        for step in range(STEPS)
    ]  # fmt: skip
    memory = trace_of(memory=rows).tables["memory"]
    found = diagnose(job.with_tables({"memory": memory})).findings
    return next((f for f in found if f.kind == "memory_headroom"), None)


def steady(step):
    """Return memory that does not grow."""
    return GIB


def growing(step):
    """Return memory that grows by a 64th of a GiB a step."""
    return GIB + step * GIB / 64


def test_the_rank_its_pace_and_its_end_are_reported():
    """Fails if a leak is found only when the job is killed for it."""
    finding = finding_of([steady, growing], capacity=4 * GIB)
    assert finding.where == {"rank": 1}
    assert finding.severity == "critical"
    claim = finding.claim
    assert claim.code == "memory_growth.claim_full_in"
    assert "grows by 16.0 MiB a step" in str(claim)
    steps_left = 3 * 64 - (STEPS - 1)
    assert claim.values["left_ns"] == pytest.approx(steps_left * 122 * MS, rel=0.01)
    assert finding.evidence[-1].values == {"ranks": 1}


def test_without_a_capacity_no_end_is_made_up():
    """Fails if a time is told that nothing in the capture gives."""
    finding = finding_of([growing, growing])
    assert finding.where == {"ranks": [0, 1]}
    assert finding.severity == "warning"
    assert finding.claim.code == "memory_growth.claim"


@pytest.mark.parametrize("capacity", [None, 4 * GIB])
def test_steady_memory_is_no_finding(capacity):
    """Fails if every job has a leak."""
    assert finding_of([steady, steady], capacity=capacity) is None
