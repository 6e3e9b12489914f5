"""What the profiler itself did, and processes that use several devices."""

from tests.kineto_files import complete, kernel, launched, step, write
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace

LENGTH = 50_000


def load(tmp_path, events):
    """Return the trace of one rank, and what is said of it."""
    trace = load_trace(write(tmp_path / "rank0.json", events))
    return trace, " ".join(texts(trace.limits))


def steps(*, flush=0):
    """Return five steps of 20 ms of work, with a flush of the profiler in each."""
    events = []
    for number in range(5):
        at = number * LENGTH
        events += [step(number, at, LENGTH), *launched("gemm", at + 5, at + 50, 20_000, number + 1)]
        if flush:
            events.append(complete("overhead", "Buffer Flush", at + 22_000, flush, tid=0, pid=-1))
    return events


def test_idle_time_of_the_profiler_is_not_the_programs(tmp_path):
    """Fails when a program is blamed for the time in which the profiler wrote its buffers."""
    trace, said = load(tmp_path, steps(flush=20_000))
    assert "the profiler's own work (Buffer Flush) takes 40.0 % of the steps, 100 ms" in said
    evidence = " ".join(str(text) for found in diagnose(trace).findings for text in found.evidence)
    assert "The host was in the annotation Buffer Flush" in evidence
    assert "Nothing was recorded" not in evidence


def test_nothing_is_said_without_it(tmp_path):
    """Fails when a healthy file is said to be disturbed."""
    assert "profiler's own work" not in load(tmp_path, steps())[1]
    assert "profiler's own work" not in load(tmp_path, steps(flush=100))[1]


def test_devices_of_one_process_are_told_apart(tmp_path):
    """Fails when a second device that is idle hides behind the first."""
    events = steps()
    events += [kernel("gemm", at * LENGTH + 100, 5000, 90 + at) | {"pid": 1} for at in range(5)]
    for event in events[-5:]:
        event["args"]["device"] = 1
    said = load(tmp_path, events)[1]
    assert "2 devices in one process count as one: device 1 worked 25.0 ms, device 0 100 ms" in said


def test_two_devices_that_are_equally_busy_are_both_named(tmp_path):
    """Fails when one of two devices is named twice, and the other one not."""
    events = steps()
    for number in range(5):
        events.append(kernel("gemm", number * LENGTH + 50, 20_000, number + 1, device=1))
    said = load(tmp_path, events)[1]
    assert "device 0 worked 100 ms, device 1 100 ms" in said
