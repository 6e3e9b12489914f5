"""Processes with several devices: each device has shares of its own, and one device needs none."""

from dataclasses import replace

import pytest
from tests.kineto_files import call, kernel, launched, step, write

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.account.kernels.breakdown import breakdown_by_device
from meshscope.analyze.account.kernels.by_device import use_by_device
from meshscope.analyze.account.kernels.table import kernel_report
from meshscope.analyze.account.mfu.devices import devices_per_rank
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.output.json.kernels import kernels_to_json
from meshscope.analyze.output.text.diagnosis import to_text

LENGTH = 10_000


def trace_of_two(tmp_path, *, second=True):
    """Return four steps in which device 0 works 60 % and device 1, inside of that, 20 %, half of it NCCL."""
    events = []
    for number in range(4):
        at = number * LENGTH
        events += [step(number, at, LENGTH), *launched("gemm", at + 5, at + 1000, 6000, number + 1)]
        if second:
            events.append(kernel("gemm", at + 2000, 1000, 100 + number, device=1))
            events.append(
                kernel("ncclDevKernel_Broadcast", at + 4000, 1000, 200 + number, device=1)
            )
    return load_trace(write(tmp_path / "rank0.json", events))


def test_each_device_has_its_own_shares(tmp_path):
    """Fails when the idle time of a device is hidden by the work of another one."""
    trace = trace_of_two(tmp_path)
    found = use_by_device(trace, step_windows(trace))
    shares = [
        (one.device, *(round(share, 2) for share in (*_parts(one), one.beside_frac, one.idle_frac)))
        for one in found
    ]
    assert shares == [(0, 0.6, 0.0, 0.0, 0.0, 0.4), (1, 0.1, 0.1, 0.0, 0.4, 0.4)]
    assert all(
        sum((*_parts(one), one.beside_frac, one.idle_frac)) == pytest.approx(1.0) for one in found
    )


def _parts(use):
    return use.compute_frac, use.communication_frac, use.other_frac


def test_the_breakdown_has_a_row_for_each_device(tmp_path):
    """Fails when the idle time of a device is that of all devices together."""
    trace = trace_of_two(tmp_path)
    found = breakdown_by_device(trace)
    columns = ["device", "span_ns", "computation_ns", "exposed_communication_ns", "idle_ns"]
    assert found[columns].to_numpy().tolist() == [
        [0, 36_000_000, 24_000_000, 0, 12_000_000],
        [1, 36_000_000, 4_000_000, 4_000_000, 28_000_000],
    ]
    assert breakdown_by_device(trace_of_two(tmp_path, second=False)).empty


def test_devices_that_wait_for_each_other_are_a_warning(tmp_path):
    """Fails when a second device that idles beside the first is mentioned among the limits only."""
    result = diagnose(trace_of_two(tmp_path))
    (found,) = [one for one in result.findings if one.kind == "device_imbalance"]
    assert (found.severity, found.where["rank"]) == ("warning", 0)
    assert "20.0 % of the step on average. Device 0 works 60.0 % of it, device 1 20.0 %" in str(
        found.claim
    )
    assert [one.device for one in result.devices] == [0, 1]


def test_devices_that_work_alike_do_not_wait(tmp_path):
    """Fails when devices that are busy at the same times get a finding, or no account."""
    events = []
    for number in range(4):
        at = number * LENGTH
        events += [step(number, at, LENGTH), *launched("gemm", at + 5, at + 1000, 6000, number + 1)]
        events.append(kernel("gemm", at + 1000, 6000, 100 + number, device=1))
    result = diagnose(load_trace(write(tmp_path / "rank0.json", events)))
    assert not any(one.kind == "device_imbalance" for one in result.findings)
    assert [round(one.busy_frac, 2) for one in result.devices] == [0.6, 0.6]


def test_one_device_gives_none(tmp_path):
    """Fails when a usual process gets a finding about its devices."""
    trace = trace_of_two(tmp_path, second=False)
    assert use_by_device(trace, step_windows(trace)) == ()


STATED = {
    "flops_per_token": 1e3,
    "tokens_per_step": 3000,
    "peak_flops": 1e9,
    "peak_source": "stated",
}
"""3e6 FLOPs in a step of 10 ms: 30 % of the peak of one device."""


@pytest.mark.parametrize(("second", "mfu"), [(False, 0.3), (True, 0.15)])
def test_mfu_counts_the_peak_of_each_device(tmp_path, second, mfu):
    """Fails when a process that drives several devices has an MFU as many times too high."""
    trace = trace_of_two(tmp_path, second=second)
    found = diagnose(replace(trace, run={**trace.run, **STATED}))
    assert found.utilization.mfu == pytest.approx(mfu, rel=1e-3)
    says = "A rank computes on 2 devices" in to_text(found)
    assert says is second
    assert ("Devices of one rank, share of the step" in to_text(found)) is second


def test_a_row_that_only_communicates_is_no_device(tmp_path):
    """Fails when the communication of a device, which some profilers write as a process of its own, is a second device."""
    events = [step(0, 0, LENGTH), *launched("gemm", 5, 1000, 6000, 1)]
    events.append(kernel("hcom_allReduce__1", 7000, 1000, 2, device=9))
    trace = load_trace(write(tmp_path / "rank0.json", events))
    assert use_by_device(trace, step_windows(trace)) == ()
    assert not any("in one process count as one" in str(limit) for limit in trace.limits)


def test_idle_devices_are_no_inefficiency_of_kernels(tmp_path):
    """Fails when what one device computes while the other one idles is blamed on its kernels."""
    trace = trace_of_two(tmp_path)
    found = diagnose(replace(trace, run={**trace.run, **STATED}))
    names = {bar.name for bar in found.waterfall}
    assert "kernel_inefficiency" not in names
    assert any("ranks compute on several devices" in str(limit) for limit in found.limits)


def test_a_device_that_is_only_touched_has_no_peak_here(tmp_path):
    """Fails when a rank that fills a few bytes on the device of another one has half its MFU."""
    events = [step(0, 0, LENGTH), *launched("gemm", 5, 1000, 6000, 1)]
    events.append(kernel("fill", 2000, 3, 100, device=1))
    assert devices_per_rank(load_trace(write(tmp_path / "rank0.json", events))) == 1.0


def blocked_trace(tmp_path):
    """Return steps of 100 ms: device 0 works 80, device 1 the ten before a call to cudaFree of 19 ms."""
    length, events = 100_000, []
    for number in range(3):
        at, first = number * length, 3 * number + 1
        events += [
            step(number, at, length),
            *launched("gemm", at + 4990, at + 5000, 40_000, first),
            *launched("gemm", at + 19_990, at + 20_000, 10_000, first + 1, device=1),
            call("cudaFree", at + 30_000, 19_000),
            *launched("gemm", at + 49_990, at + 50_000, 40_000, first + 2),
        ]
    return load_trace(write(tmp_path / "rank0.json", events))


def test_each_device_has_its_own_causes(tmp_path):
    """Fails when why a device idles is decided by the launches and the work of another one."""
    result = diagnose(blocked_trace(tmp_path))
    first, second = (one.idle_causes_frac for one in result.devices)
    assert first["allocator"] == pytest.approx(0.04)
    assert second["allocator"] == pytest.approx(0.19)
    assert sum(first.values()) == pytest.approx(0.2)
    assert sum(second.values()) == pytest.approx(0.9)
    (found,) = [one for one in result.findings if one.kind == "device_imbalance"]
    assert "Device 1 idle by cause: nothing launched 71.0 % and allocator 19.0 %" in [
        str(said) for said in found.evidence
    ]


def test_no_share_of_several_devices_is_above_one(tmp_path):
    """Fails when the work of all devices is a share of the time in which any of them worked."""
    trace = blocked_trace(tmp_path)
    report = kernel_report(trace)
    assert report.kernels["busy_frac"].tolist() == [1.0]
    assert report.kernels["step_frac"].tolist() == [pytest.approx(0.45)]
    assert report.places["busy_frac"].tolist() == [1.0]
    assert kernels_to_json(trace)["operators"][0]["busy_frac"] == 1.0
    assert report.kernels["total_ns"].tolist() == [270_000_000]


def test_two_streams_at_once_are_no_share_above_one(tmp_path):
    """Fails when a kernel that runs on two streams at once is busy for longer than its device."""
    events = [step(0, 0, 100), kernel("gemm", 0, 80), kernel("gemm", 20, 80, stream=8)]
    report = kernel_report(load_trace(write(tmp_path / "rank0.json", events)))
    assert report.kernels["busy_frac"].tolist() == [1.0]
    assert report.kernels["total_ns"].tolist() == [160_000]
