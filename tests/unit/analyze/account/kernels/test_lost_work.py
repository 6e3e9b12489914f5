"""Kernels that a profiler lost: what looks idle may have been their time."""

import pytest
from tests.kineto_files import call, launched, step, write

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.read import import_trace

MS = 1000
"""In the microseconds of a file."""


def findings(tmp_path, lost=(), extra=()):
    """Return the findings of 40 kernels of 1 ms that follow one another in a step of 60 ms, less some, and the idle shares."""
    events = [step(0, 0, 60 * MS), *extra]
    for place in range(40):
        launch, kernel = launched("gemm", place * 100, 100 + place * MS, 1 * MS, place + 1)
        events += [launch] if place in lost else [launch, kernel]
    found = diagnose(import_trace(write(tmp_path / "rank0.json", events))).findings
    return {f.cause: f for f in found if f.cause}


@pytest.mark.parametrize("lost", [range(10, 20), [3, 9, 15, 21, 27, 33]])
def test_time_of_kernels_that_were_lost_has_no_cause(tmp_path, lost):
    """Fails when a device is said to wait where the profiler lost what it did."""
    found = findings(tmp_path, lost)
    assert "device_wait" not in found
    claim = found["lost_work"].claim
    assert claim.values["launches"] == len(lost)
    assert claim.values["share"] == pytest.approx(len(lost) / 60, abs=0.005)
    assert found["nothing_launched"].cost_frac == pytest.approx(20 / 60, abs=0.01)
    assert "remainder" not in found


@pytest.mark.parametrize(
    "extra",
    [
        [call("cudaMemsetAsync", 50 + 100 * place, 5, 500 + place) for place in range(20)],
        [call("cudaStreamBeginCapture", 1, 2, 499)]
        + [call("cudaLaunchKernel", 50 + 100 * place, 5, 500 + place) for place in range(20)],
    ],
    ids=["memory sets of no byte", "a graph is captured"],
)
def test_launches_that_start_nothing_lost_nothing(tmp_path, extra):
    """Fails when calls that give a device no work make its idle time doubtful."""
    assert "lost_work" not in findings(tmp_path, extra=extra)
