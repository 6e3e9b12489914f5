"""A profiler that stops before the device is done drops the device's last work: the device was not idle then."""

import pytest
from tests.kineto_files import call, launched, step, write
from tests.texts import texts

from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.read import import_trace


def steps(first, count, *, recorded, marks=True):
    """Return steps of 10 launches, 10 us each; the device needs 50 us for each kernel and is recorded until then."""
    found = []
    for number in range(first, first + count):
        found += [step(number, number * 100, 99)] if marks else []
        for place in range(10):
            at, done = number * 100 + place * 10, (number * 10 + place) * 50
            own = launched("gemm", at, done + 10, 50, number * 10 + place + 1)
            found += own if done < recorded else own[:1]
    return found


def imported(tmp_path, events):
    """Return the trace of a file, the analysed steps and its limits."""
    trace = import_trace(write(tmp_path / "rank0.json", events))
    return step_windows(trace), texts(trace.limits)


def test_a_step_whose_work_was_dropped_is_left_out(tmp_path):
    """Fails when half of a step without kernels is called a faster step, or an idle device."""
    windows, limits = imported(tmp_path, steps(0, 4, recorded=1_700))
    assert windows.steps.tolist() == [0, 1, 2]
    assert any(
        "6 launches at the end" in one and "Left out of the steps: 3" in one for one in limits
    )


def test_where_no_step_is_whole_the_recorded_part_stays(tmp_path):
    """Fails when a device that was busy throughout is said to have done 5 steps in the host's time."""
    windows, limits = imported(tmp_path, steps(0, 4, recorded=250))
    assert windows.steps.tolist() == [0]
    assert windows.intervals_of(0).tolist() == [[0, 260_000]]
    assert any("the recorded part of step 0" in one for one in limits)


def test_a_file_without_steps_ends_with_its_device(tmp_path):
    """Fails when the time in which the host ran ahead of the recording counts as idle."""
    windows, limits = imported(tmp_path, steps(0, 4, recorded=250, marks=False))
    assert windows.intervals_of(0)[0, 1] == 260_000
    assert any("35 launches at the end" in one for one in limits)


@pytest.mark.parametrize("kind", ["few", "captured"])
def test_launches_that_start_no_work_are_no_lost_tail(tmp_path, kind):
    """Fails when the capture of a graph, or a launch that failed, takes a step with it."""
    events = steps(0, 3, recorded=9_999)
    if kind == "captured":
        events += [call("cudaStreamBeginCapture", 299, 1)]
    events += [
        call("cudaLaunchKernel", 300 + at, 1, 900 + at) for at in range(3 if kind == "few" else 30)
    ]
    assert imported(tmp_path, events)[0].steps.tolist() == [0, 1, 2]
