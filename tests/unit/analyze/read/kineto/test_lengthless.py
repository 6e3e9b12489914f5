"""Work of a device without a length is work that the profiler lost, and no idle time with a cause."""

import pytest
from tests.kineto_files import kernel, launched, step, write
from tests.texts import texts

from meshscope.analyze.account.kernels.breakdown import device_breakdown
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.read import import_trace

MS = 1000
"""In the microseconds of a file."""
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def without_every_third(length):
    """Return two steps of 100 ms with 90 kernels of 1 ms each, of which every third has this length."""
    found = []
    for number in range(2):
        found.append(step(number, number * 100 * MS, 100 * MS))
        for place in range(90):
            at = number * 100 * MS + place * MS
            found += launched("gemm", at + 10, at + 50, MS, number * 90 + place + 1)
            if place % 3 == 1:
                found[-1]["dur"] = length
    return found


@pytest.mark.parametrize("length", [None, "2 ms", -1, float("nan")])
def test_lost_time_is_no_idle_time_with_a_cause(tmp_path, length):
    """Fails when kernels without a length leave gaps for which the host or a wait is blamed."""
    trace = import_trace(write(tmp_path / "rank0.json", without_every_third(length)))
    assert len(trace.frame("kernel")) == 120
    assert any("60 of 180 device events left out" in text for text in texts(trace.limits))
    found = {finding.cause: finding for finding in diagnose(trace).findings}
    assert found["lost_work"].claim.values["share"] == pytest.approx(0.3, abs=0.01)
    assert sum(one.cost_frac or 0.0 for one in found.values()) < 0.15


def test_a_collective_without_a_length_keeps_its_place(tmp_path):
    """Fails when one unreadable length shifts all later collectives of a group against those of its peers."""
    for rank in (0, 1):
        events = [
            kernel(ALL_REDUCE, place * 10 * MS, 2 * MS, place + 1, stream=20) for place in range(5)
        ]
        if rank:
            events[2]["dur"] = None
        write(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=2)
    trace = import_trace(tmp_path)
    rows = trace.frame("collective")
    starts = rows.groupby("seq")["start_ns"].nunique()
    assert (len(rows), starts.max()) == (10, 1)
    assert any("1 of 5 device events are communication" in text for text in texts(trace.limits))


def test_activities_of_no_length_are_counted_beside_others(tmp_path):
    """Fails when a set of memory that took less than the clock shows ends the breakdown."""
    events = [kernel("gemm", 0, 10), kernel("gemm", 20, 0), kernel("gemm", 30, 10)]
    row = device_breakdown(import_trace(write(tmp_path / "rank0.json", events))).iloc[0]
    assert row[["span_ns", "computation_ns", "idle_ns", "device_events"]].tolist() == [
        40_000, 20_000, 20_000, 3,
    ]  # fmt: skip
