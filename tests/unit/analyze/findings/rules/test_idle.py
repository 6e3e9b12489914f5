"""Idle devices: every instant has one cause, and the call or function that holds the host is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kineto_files import call, complete, kernel, launched, operator, step, write
from tests.tables import trace_of

from meshscope.analyze import load_trace
from meshscope.analyze.account.kernels.idle import device_work, idle_causes
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.tables.intervals import pair, subtract, total_length, union


def causes(tmp_path, events):
    """Return the findings about idle devices by cause."""
    trace = load_trace(write(tmp_path / "rank0.json", events))
    return {finding.cause: finding for finding in diagnose(trace).findings if finding.cause}


def says(finding, *words):
    """Say whether one line of evidence has all these words."""
    return any(all(word in str(line) for word in words) for line in finding.evidence)


@pytest.mark.parametrize(
    "name", ["cudaFree", "cudaMalloc", "cudaHostRegister", "hipFree", "cuMemUnmap"]
)
def test_a_host_in_the_allocator_is_not_launch_overhead(tmp_path, name):
    """Fails when who runs out of memory is told to fuse small kernels."""
    events = [step(1, 0, 50_000)]
    for at in range(5):
        t = at * 10_000
        events += [operator("aten::conv2d", t + 10, 9_900), call(name, t + 140, 9_700)]
        events += launched("conv", t + 20, t + 30, 100, at + 1)
    found = causes(tmp_path, events)
    assert found["allocator"].cost_frac == pytest.approx(0.97, abs=0.001)
    assert says(found["allocator"], name, "inside aten::conv2d", "9.70 ms")
    assert "launching" not in found


def test_one_long_call_is_named_with_its_operator(tmp_path):
    """Fails when a module that is loaded in one launch is taken for the pace of the host."""
    events = [step(1, 0, 100_000), *launched("relu", 20, 30, 60, 1)]
    events += [operator("aten::conv2d", 2_000, 90_100), call("cudaLaunchKernel", 2_010, 90_000, 2)]
    events += [kernel("conv", 92_015, 7_000, 2)]
    found = causes(tmp_path, events)
    assert found["long_call"].cost_frac == pytest.approx(0.90, abs=0.002)
    assert says(found["long_call"], "cudaLaunchKernel inside aten::conv2d", "90.0 ms")


def test_the_stack_is_named_where_no_operator_is_around_the_call(tmp_path):
    """Fails when a call from plain Python is blamed on nobody."""
    events = [step(1, 0, 100_000), *launched("relu", 20, 30, 60, 1)]
    events += [complete("python_function", "train.py(7): load", 1_000, 95_000)]
    events += [call("cuModuleLoadData", 2_010, 90_000), *launched("relu", 99_000, 99_010, 60, 2)]
    assert says(causes(tmp_path, events)["long_call"], "cuModuleLoadData inside train.py(7): load")


def test_launched_work_that_waits_on_the_device_is_not_the_hosts_doing(tmp_path):
    """Fails when a stream behind an event is taken for a host that stalls."""
    events = [step(1, 0, 100_000), *launched("add", 12, 20, 100, 1)]
    events += [call("cudaStreamWaitEvent", 50, 5, 90)]
    for at in range(2, 12):
        events += launched("mul", 60 + at * 10, 96_000 + at * 100, 100, at, stream=9)
    events += [call("cudaDeviceSynchronize", 400, 99_000)]
    found = causes(tmp_path, events)
    assert found["device_wait"].cost_frac == pytest.approx(0.96, abs=0.005)
    assert says(found["device_wait"], "stream 9", "cudaStreamWaitEvent", "event of another stream")
    assert says(found["device_wait"], "cudaDeviceSynchronize", "99.0 ms")


def test_idle_before_the_first_kernel_counts(tmp_path):
    """Fails when a step that begins with 60 % of Python says that nothing is unlaunched for 0 %."""
    events = [step(6, 0, 100_000), complete("python_function", "data.py(3): prepare", 20, 59_900)]
    for at in range(100):
        events += launched("gemm", 60_002 + at * 20, 60_010 + at * 398, 398, at + 1)
    found = causes(tmp_path, events)
    assert found["nothing_launched"].cost_frac == pytest.approx(0.60, abs=0.005)
    assert says(
        found["nothing_launched"], "60.0", "at the start of the step", "data.py(3): prepare"
    )
    # The line is there: nobody is asked to record it.
    assert found["nothing_launched"].remedy.code == "idle.nothing_remedy_seen"


def test_a_sixth_of_the_step_without_launches_is_named(tmp_path):
    """Fails when idle time below a quarter of the step is called unknown though its cause is recorded."""
    events = [step(6, 0, 100_000), complete("python_function", "data.py(3): prepare", 20, 15_900)]
    for at in range(100):
        events += launched("gemm", 16_002 + at * 20, 16_010 + at * 838, 838, at + 1)
    found = causes(tmp_path, events)
    assert found["nothing_launched"].cost_frac == pytest.approx(0.16, abs=0.005)
    assert says(found["nothing_launched"], "16.0", "data.py(3): prepare")


def test_launches_below_their_latency_do_not_wait_on_the_device(tmp_path):
    """Fails when the launch call itself is counted as time after the launch returned."""
    events = [step(1, 0, 50_000)]
    for at in range(400):
        t = at * 120 + 5
        events += [call("cudaLaunchKernel", t, 8, at + 1), kernel("add", t + 52, 10, at + 1)]
    found = causes(tmp_path, events)
    assert "device_wait" not in found
    assert found["launch_latency"].cost_frac == pytest.approx(400 * 52 / 50_000, abs=0.005)


@pytest.mark.parametrize("name", ["add", "triton_poi_fused_add_0"])
def test_a_program_that_is_compiled_is_not_advised_to_compile(tmp_path, name):
    """Fails when whoever has compiled the model is told to do that, or who has not is told otherwise."""
    events = [step(1, 0, 50_000)]
    for at in range(400):
        t = at * 120 + 5
        events += [call("cudaLaunchKernel", t, 8, at + 1), kernel(name, t + 52, 10, at + 1)]
    remedy = str(causes(tmp_path, events)["launch_latency"].remedy)
    assert ("reduce-overhead" in remedy) is name.startswith("triton")


def test_gaps_between_work_launched_long_before_are_no_late_launches(tmp_path):
    """Fails when a device that its host is far ahead of is said to wait for launches."""
    events = [step(1, 0, 50_000)]
    for at in range(1000):
        events += launched("add", at * 10, 20 + at * 50, 44, at + 1)
    found = causes(tmp_path, events)
    assert found["kernel_gap"].cost_frac == pytest.approx(0.12, abs=0.002)
    assert "launch_latency" not in found


def test_gaps_inside_a_graph_are_no_late_launches(tmp_path):
    """Fails when a job that replays graphs is advised to use graphs."""
    events = [step(1, 0, 50_000)]
    for at in range(100):
        events += [call("cudaGraphLaunch", at * 500, 5, at + 1)]
        events += [kernel("add", at * 500 + 8 + node * 49, 45, at + 1) for node in range(10)]
    found = causes(tmp_path, events)
    assert found["kernel_gap"].cost_frac == pytest.approx(100 * 9 * 4 / 50_000, abs=0.002)
    assert "launch_latency" not in found


def test_a_gap_is_placed_in_its_own_step(tmp_path):
    """Fails when the time since the first of several steps is called that since the step began."""
    events = [*launched("gemm", 5, 10, 9_990, 1), step(2, 10_000, 10_000)]
    events += [step(1, 0, 10_000), *launched("gemm", 10_000, 10_005, 2_995, 2)]
    events += launched("gemm", 19_000, 19_005, 990, 3)
    assert says(causes(tmp_path, events)["nothing_launched"], "6.00 ms", "3.00 ms after the step")


def test_a_long_operator_without_launches_is_work_of_the_host(tmp_path):
    """Fails when 49 ms in one operator of the host are called launch overhead."""
    events = [step(1, 0, 100_000), *launched("relu", 20, 30, 60, 1)]
    events += [operator("aten::stack", 1_000, 49_000), *launched("gemm", 50_100, 50_110, 49_000, 2)]
    found = causes(tmp_path, events)
    assert found["long_operator"].cost_frac == pytest.approx(0.49, abs=0.005)
    assert says(found["long_operator"], "aten::stack", "49.0 ms")


def test_a_pause_in_an_operator_that_launches_is_no_launch_overhead(tmp_path):
    """Fails when 49 ms of Python in the backward of one operator are told to fuse kernels, as it launches at its end."""
    events = [step(1, 0, 100_000), operator("MyFnBackward", 1_000, 49_100)]
    events += [complete("python_function", "my.py(5): backward", 1_010, 49_000)]
    events += launched("relu", 20, 30, 60, 1) + launched("gemm", 50_050, 50_060, 49_000, 2)
    found = causes(tmp_path, events)
    assert found["long_operator"].cost_frac == pytest.approx(0.49, abs=0.005)
    assert says(found["long_operator"], "MyFnBackward", "49.0 ms")
    assert says(found["long_operator"], "my.py(5): backward")
    assert "launching" not in found


def test_many_small_operators_that_launch_nothing_are_work_of_the_host(tmp_path):
    """Fails when what computes on the CPU for 40 ms is told to fuse kernels."""
    events = [step(1, 0, 100_000), *launched("relu", 20, 30, 60, 1)]
    events += [operator("aten::add", 1_000 + 40 * at, 38) for at in range(1_000)]
    events += launched("gemm", 41_100, 41_110, 58_000, 2)
    found = causes(tmp_path, events)
    assert found["long_operator"].cost_frac == pytest.approx(0.38, abs=0.005)
    assert "launching" not in found


def test_operators_of_another_thread_do_not_launch(tmp_path):
    """Fails when a loader thread beside a waiting main thread makes the job launch-bound."""
    events = [step(1, 0, 10_000), *launched("relu", 20, 30, 60, 1)]
    events += [complete("cpu_op", "aten::copy_", 100 + 100 * at, 90, tid=2) for at in range(80)]
    events += launched("relu", 9_000, 9_010, 900, 2)
    found = causes(tmp_path, events)
    assert found["nothing_launched"].cost_frac == pytest.approx(0.90, abs=0.01)
    assert "launching" not in found


_ROWS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 60), st.integers(0, 80)), min_size=1, max_size=12
)


@settings(deadline=None)
@given(_ROWS, _ROWS, st.lists(st.booleans(), min_size=12, max_size=12))
def test_the_causes_add_up_to_the_idle_time(work, calls, allocates):
    """Fails when an idle instant has two causes, or none."""
    million = 100_000
    kernels = [
        {
            "start_ns": (start + delay) * million, "dur_ns": dur * million, "launch_ns": start * million,
            "correlation": at + 1,
        }
        for at, (start, dur, delay) in enumerate(work)
    ]  # fmt: skip
    rows = [
        {
            "start_ns": start * million, "dur_ns": dur * million, "name_id": int(is_memory),
            "thread": dur % 2, "correlation": delay % 12,
        }
        for (start, dur, delay), is_memory in zip(calls, allocates, strict=False)
    ]  # fmt: skip
    names = [{"name_id": 0, "name": "cudaLaunchKernel"}, {"name_id": 1, "name": "cudaFree"}]
    trace = trace_of(step=[{"dur_ns": 1}], kernel=kernels, runtime_call=rows, name=names)
    rows_of_work = device_work(trace.rank_frame("kernel", 0))
    window = np.array([[-5, 700]], dtype=np.int64) * million
    found = idle_causes(trace, 0, rows_of_work, window)
    start = rows_of_work["start_ns"].to_numpy(np.int64)
    busy = union(pair(start, start + rows_of_work["dur_ns"].to_numpy(np.int64)))
    assert sum(found.total_ns.values()) == total_length(subtract(window, busy))
    assert min(found.total_ns.values()) >= 0


def _waited_for(shift, drift=0):
    """Return steps that end in a wait for the device, with its clock set back, more in each step, and 0.5 ms idle in each."""
    events = []
    for number in range(8):
        t = number * 10_000
        events += [step(number, t, 10_000), call("cudaDeviceSynchronize", t + 500, 9_000)]
        for at in range(10):
            correlation = 10 * number + at + 1
            start = t + 60 + at * 944 - shift - drift * number
            events += launched("gemm", t + 50 + at * 10, start, 940, correlation)
    return events


def test_a_clock_that_is_off_makes_the_causes_unknown(tmp_path):
    """Fails when a wait is blamed for idle time that only a clock makes that falls behind, from 2 to 4 ms."""
    found = causes(tmp_path, _waited_for(2_000, drift=300))
    assert "synchronise" not in found
    assert says(found["unknown"], "before its launch", "4.09 ms")


def test_a_clock_that_is_off_by_the_same_is_moved(tmp_path):
    """Fails when causes are unknown, or others, because a device was 2 ms behind all along."""
    assert causes(tmp_path, _waited_for(2_000)).keys() == causes(tmp_path, _waited_for(0)).keys()


def test_a_clock_that_is_off_by_little_leaves_the_causes(tmp_path):
    """Fails when 0.03 ms at each of a few long gaps take the cause of 60 % from the reader."""
    events = [step(1, 0, 100_000)]
    for at in range(25):
        events += launched("gemm", at * 4_000 + 50, at * 4_000 + 20, 1_500, at + 1)
    assert "nothing_launched" in causes(tmp_path, events)


def test_the_step_in_which_devices_idle_most_is_named(tmp_path):
    """Fails when a pause of one step of eight reads like a habit of all."""
    events, at = [], 0
    for number in range(8):
        length = 1_020_000 if number == 3 else 20_000
        events += [step(number, at, length), *launched("gemm", at, at + 20, 10_000, number + 1)]
        at += length
    found = diagnose(load_trace(write(tmp_path / "rank0.json", events))).findings
    (idle,) = (one for one in found if one.cause == "nothing_launched")
    (line,) = (one for one in idle.evidence if one.code == "idle.in_steps")
    assert str(line).startswith("Idle of all causes: 1.01 s in step 3, 10.0 ms in the other")


def test_a_rank_without_device_events_is_not_idle(tmp_path):
    """Fails when the device of a rank that recorded the host alone is said to idle all the time."""
    for rank in range(2):
        events = [step(number, number * 100_000, 100_000) for number in range(4)]
        for number in range(4):
            at = number * 100_000
            events += [operator("aten::mm", at + 1, 3)]
            if rank == 0:
                events += launched("gemm", at + 5, at + 10, 80_000, number + 1)
        write(tmp_path / f"rank{rank}.json", events, rank, 2)
    findings = diagnose(load_trace(tmp_path)).findings
    idle = [one for one in findings if "Devices idle" in str(one.claim)]
    assert [one.cause for one in idle] == ["nothing_launched"]
    assert idle[0].cost_frac == pytest.approx(0.2, abs=0.001)


def test_the_annotation_of_a_step_says_nothing_of_the_host(tmp_path):
    """Fails when the host is said to be in the annotation that marks the step, as it always is."""
    events = []
    for number in range(4):
        at = number * 100_000
        events += [complete("user_annotation", f"train_step_{number}", at, 99_000)]
        events += launched("gemm", at + 5, at + 10, 50_000, number + 1)
    found = causes(tmp_path, events)["nothing_launched"]
    assert says(found, "The longest", "Nothing was recorded of the host there")
