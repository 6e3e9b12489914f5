"""Files of which all times are in nanoseconds or milliseconds: refused, for no launch takes so long or so short."""

import pytest
from tests.kineto_files import launched, operator, write

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError


def events(scale, *, count=300, kernel_us=1.25, launch_us=2.5):
    """Return launches with their kernels, every tenth of which is short, in microseconds times a scale."""
    found = []
    for place in range(count):
        at = place * 100
        dur = kernel_us if place % 10 == 0 else 60.5 + kernel_us
        own = [operator("aten::mm", at + 5, 9), *launched("gemm", at + 10, at + 20, dur, place + 1)]
        own[1]["dur"] = launch_us + place % 3
        found += [{**one, "ts": one["ts"] * scale, "dur": one["dur"] * scale} for one in own]
    return found


@pytest.mark.parametrize("count", [25, 300])
@pytest.mark.parametrize("scale", [1000, 1e-3, 1e-6])
def test_other_units_are_refused(tmp_path, scale, count):
    """Fails when 2 s are reported as half an hour, with rates of a thousandth, without a word."""
    with pytest.raises(TraceFormatError, match="times are not in microseconds"):
        import_trace(write(tmp_path / "rank0.json", events(scale, count=count)))


@pytest.mark.parametrize("scale", [1000, 1e-3])
def test_one_copy_tells_the_unit(tmp_path, scale):
    """Fails when a copy of 1 MB that lasts 42 ms is believed to have moved 25 GB/s."""
    found = events(scale, count=3)
    found[2] |= {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)"}
    rate = 1e6 / (found[2]["dur"] / scale * 1e3)
    found[2]["args"] |= {"bytes": 1_000_000, "memory bandwidth (GB/s)": rate}
    with pytest.raises(TraceFormatError, match=r"a copy lasts .* by its size and rate"):
        import_trace(write(tmp_path / "rank0.json", found))


def test_operators_too_short_to_be_recorded_are_refused(tmp_path):
    """Fails when milliseconds of a host without a device are read as microseconds."""
    found = [event for event in events(1e-3, count=25) if event["cat"] == "cpu_op"]
    with pytest.raises(TraceFormatError, match="usual operator takes 9 ns"):
        import_trace(write(tmp_path / "rank0.json", found))


@pytest.mark.parametrize(
    "how",
    [
        {"scale": 1},
        {"scale": 1000, "count": 15},
        {"scale": 1, "kernel_us": 900.5},
        {"scale": 1, "launch_us": 900.5},
        {"scale": 1, "kernel_us": 0.05},
    ],
    ids=["usual", "few", "long kernels", "slow calls", "one tiny kernel"],
)
def test_what_physics_allows_is_read(tmp_path, how):
    """Fails when a program of large kernels, or of slow calls, is called a file of another unit."""
    assert len(import_trace(write(tmp_path / "rank0.json", events(**how))).frame("kernel"))


@pytest.mark.parametrize("length", ["12 us", None, "nan", -1, 0])
def test_lengths_that_are_no_numbers_are_refused(tmp_path, length):
    """Fails when a device of which no length can be read is said to idle all the time."""
    found = [event | {"dur": length} for event in events(1)]
    with pytest.raises(TraceFormatError, match="readable length"):
        import_trace(write(tmp_path / "rank0.json", found))


def test_whole_microseconds_of_old_profilers_are_read(tmp_path):
    """Fails when lengths that were rounded down to nothing are taken for another unit."""
    found = events(1)
    for event in found:
        event["ts"], event["dur"] = int(event["ts"]), int(event["dur"]) // 4
    assert len(import_trace(write(tmp_path / "rank0.json", found)).frame("kernel"))


def test_calls_that_wait_for_their_kernels_are_read(tmp_path):
    """Fails when a program that runs with CUDA_LAUNCH_BLOCKING=1 is called a file of another unit."""
    found = []
    for place in range(30):
        found += launched("gemm", place * 2000, place * 2000 + 8, 1500, place + 1)
        found[-2]["dur"] = 1520
    assert len(import_trace(write(tmp_path / "rank0.json", found)).frame("kernel"))


def test_a_trace_of_the_host_alone_is_read(tmp_path):
    """Fails when a trace without kernels is judged by launches that it has not."""
    found = [event for event in events(1000) if event["cat"] == "cpu_op"]
    assert len(import_trace(write(tmp_path / "rank0.json", found)).frame("op"))
