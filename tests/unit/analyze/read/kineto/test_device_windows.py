"""Steps of a device that lags behind its host end when the device is done."""

import pytest
from tests.unit.analyze.read.kineto.test_importer import (
    event,
    kernel,
    launch,
    step_note,
    write_rank,
)

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.read import import_trace


def lagging(steps, *, host=100):
    """Return events of which the host needs ``host`` us a step and the device 300."""
    for k in range(steps):
        yield step_note(k, 1000 + k * host, host)
        yield launch(1001 + k * host, k + 1)
        yield kernel("gemm", 1002 + k * 300, 300, correlation=k + 1)


def windows(trace):
    """Return the windows of rank 0 in us."""
    frame = trace.frame("step").sort_values("step")
    begin = frame["start_ns"].to_numpy()
    return [
        (int(a) // 1000, int(b) // 1000)
        for a, b in zip(begin, begin + frame["dur_ns"].to_numpy(), strict=True)
    ]


def test_a_step_ends_when_the_device_is_done_with_it(tmp_path):
    """Fails when the host's marks bound device work: a queue of launches would hide two thirds."""
    write_rank(tmp_path / "rank0.json", lagging(4))
    trace = import_trace(tmp_path)
    assert windows(trace) == [(1000, 1302), (1302, 1602), (1602, 1902), (1902, 2202)]
    assert trace.rank_frame("kernel", 0)["step"].tolist() == [0, 1, 2, 3]


def test_all_device_time_is_in_the_account(tmp_path):
    """Fails when a part of the device's work falls behind the last step: 4 x 300 of 1202 us."""
    write_rank(tmp_path / "rank0.json", lagging(4), rank=0, world_size=1)
    found = diagnose(load_trace(tmp_path))
    assert found.step_time_ns == pytest.approx(1_202_000 / 4)
    rows = {bar.name: bar.frac for bar in found.waterfall}
    assert rows["compute"] == pytest.approx(1200 / 1202)


def test_a_device_that_keeps_up_leaves_the_windows_to_the_host(tmp_path):
    """Fails when a step is cut where its kernels end: the idle device behind them is its own."""
    write_rank(tmp_path / "rank0.json", lagging(3, host=400))
    assert windows(import_trace(tmp_path)) == [(1000, 1400), (1400, 1800), (1800, 2200)]


def test_work_on_a_side_stream_does_not_hold_the_step(tmp_path):
    """Fails when a transfer that lasts into the next step takes that step's compute with it."""
    events = [
        *lagging(2),
        launch(1003, 9),
        kernel("ncclDevKernel_AllReduce", 1290, 250, correlation=9, stream=20),
    ]
    write_rank(tmp_path / "rank0.json", events)
    assert windows(import_trace(tmp_path)) == [(1000, 1302), (1302, 1602)]


def test_transfers_after_the_last_compute_belong_to_the_step(tmp_path):
    """Fails when a step ends with its compute: what its launches did afterwards is its own."""
    events = [step_note(0, 1000, 10), step_note(1, 1010, 10)]
    for k in range(2):
        base = 1002 + 300 * k
        events += [launch(1001 + 10 * k, 2 * k + 1), launch(1002 + 10 * k, 2 * k + 2)]
        events.append(kernel("gemm", base, 200, correlation=2 * k + 1))
        events.append(event("gpu_memcpy", "Memcpy DtoH", base + 200, 90, device=0, stream=9, correlation=2 * k + 2))  # fmt: skip
    write_rank(tmp_path / "rank0.json", events)
    assert windows(import_trace(tmp_path)) == [(1000, 1292), (1292, 1592)]


def test_kernels_without_a_launch_move_no_border(tmp_path):
    """Fails when a kernel of which nobody knows the step decides where one ends."""
    events = [step_note(0, 1000, 100), step_note(1, 1100, 100), kernel("gemm", 1090, 60)]
    write_rank(tmp_path / "rank0.json", events)
    assert windows(import_trace(tmp_path)) == [(1000, 1100), (1100, 1200)]


@pytest.mark.traces
def test_a_real_device_behind_its_host(traces_dir):
    """Fails when the step of a V100 that needs 96 ms is that of the host, which queued at 36 ms."""
    found = diagnose(load_trace(traces_dir / "hta/ns_resolution_trace"))
    assert found.step_time_ns / 1e6 == pytest.approx(96.3, abs=0.7)
    rows = {bar.name: bar.dur_ns for bar in found.waterfall}
    assert rows["compute"] * 5 / 1e6 == pytest.approx(468.173, abs=0.05)


def first_window(tmp_path, *before):
    """Return where the first step begins that launches at 20 ms, us, with this device work before, which has no launch."""
    rows = [step_note(0, 1000, 50_000), launch(20_000, 1), kernel("gemm", 20_010, 300, 1)]
    rows += [kernel("old", start, dur) for start, dur in before]
    write_rank(tmp_path / "rank0.json", rows)
    return windows(import_trace(tmp_path))[0][0]


def test_work_of_the_step_before_is_not_this_ones(tmp_path):
    """Fails when what the device still does for the step before counts for the first of the file."""
    assert first_window(tmp_path, (500, 1000), (1510, 2000)) == 3510


def test_work_without_a_launch_after_a_pause_is_no_rest_of_another_step(tmp_path):
    """Fails when a lone fill without a launch, milliseconds into a step, takes these from it."""
    assert first_window(tmp_path, (5000, 3)) == 1000
    assert first_window(tmp_path, (500, 1000), (9000, 3)) == 1500
