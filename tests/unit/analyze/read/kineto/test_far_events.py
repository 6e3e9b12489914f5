"""Kineto events that no clock can have shown: left out with a word, or the file is refused."""

import pytest
from tests.kineto_files import kernel, launched, operator, step, write
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError

BEGIN = 1_700_000_000_000_000
DAYS_208 = 1.8e13


def events(count=200):
    """Return a second of steps, operators, launches and kernels, in microseconds."""
    found = [step(number, BEGIN + number * 100_000, 100_000) for number in range(10)]
    for place in range(count):
        at = BEGIN + place * 5000
        found.append(operator("aten::mm", at + 5, 40))
        found += launched("gemm", at + 10, at + 50, 4300, place + 1)
    return found


def of(found, cat):
    """Return the events of one category."""
    return [event for event in found if event["cat"] == cat]


def read(tmp_path, found):
    """Return the trace and what is said of it."""
    trace = import_trace(write(tmp_path / "rank0.json", found))
    return trace, " ".join(texts(trace.limits))


@pytest.mark.parametrize(
    ("cat", "key", "value", "said"),
    [
        ("kernel", "dur", DAYS_208, "up to 208 days outside of all others, such as gemm"),
        ("kernel", "dur", 5e9, "too long for what follows on its stream or thread, such as gemm"),
        ("kernel", "dur", 60e6, "too long for what follows on its stream or thread, such as gemm"),
        ("kernel", "ts", 0, "outside of all others, such as gemm"),
        ("kernel", "ts", 4e15, "outside of all others, such as gemm"),
        ("cpu_op", "dur", DAYS_208, "up to 208 days outside of all others, such as aten::mm"),
        ("cpu_op", "dur", 5e9, "too long for what follows on its stream or thread"),
        ("cuda_runtime", "dur", DAYS_208, "outside of all others, such as cudaLaunchKernel"),
        ("user_annotation", "dur", DAYS_208, "outside of all others, such as ProfilerStep#5"),
    ],
)
def test_an_impossible_event_is_left_out(tmp_path, cat, key, value, said):
    """Fails when one event of a wrong clock becomes a time that is shown."""
    found = events()
    of(found, cat)[5][key] = value
    trace, limits = read(tmp_path, found)
    assert "1 event left out: " in limits
    assert said in limits
    tables = {"kernel": 200, "op": 200, "runtime_call": 200, "step": 10}
    own = {"kernel": "kernel", "cpu_op": "op", "cuda_runtime": "runtime_call"}.get(cat, "step")
    for name, rows in tables.items():
        table = trace.frame(name)
        assert len(table) == rows - (name == own), name
        assert table["dur_ns"].max() < 1_000_000_000, name


def test_communication_keeps_its_arguments_behind_an_event_that_is_left_out(tmp_path):
    """Fails when the arguments of a collective go to the kernel before it."""
    found = events(20)
    of(found, "kernel")[5]["dur"] = DAYS_208
    known = {"Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float", "Group size": 2}
    for seq, count in enumerate((64, 128)):
        at = BEGIN + 150_000 + seq * 1000
        more = known | {"In msg nelems": count, "Process Group Ranks": "[0, 1]"}
        found.append(kernel("ncclDevKernel_AllReduce", at, 500, 90 + seq, stream=20, **more))
    trace, _ = read(tmp_path, found)
    assert trace.frame("collective")["size_bytes"].tolist() == [256, 512]


def test_a_long_hang_is_kept(tmp_path):
    """Fails when the kernel that a job waited for is taken to be damage."""
    found = events(20)
    found.append(kernel("ncclDevKernel_AllReduce", BEGIN + 150_000, 1800e6, 99, stream=20))
    trace, limits = read(tmp_path, found)
    assert trace.frame("kernel")["dur_ns"].max() == 1800 * 10**9
    assert "left out" not in limits


@pytest.mark.parametrize(
    ("factor", "offset", "said"),
    [
        (1, -BEGIN, "another clock or unit"),
        (0.001, 0, "another clock or unit"),
        (1000, 0, "another unit"),
    ],
)
def test_a_device_on_another_clock_is_refused(tmp_path, factor, offset, said):
    """Fails when the work of a device lies in another year, and idle time is shown instead."""
    found = events()
    for event in of(found, "kernel"):
        event["ts"] = event["ts"] * factor + offset
        event["dur"] *= factor
    with pytest.raises(TraceFormatError, match=said):
        read(tmp_path, found)


def test_lengths_in_another_unit_than_the_starts_are_refused(tmp_path):
    """Fails when kernels a thousand times too long fill every step."""
    found = events()
    for event in of(found, "kernel"):
        event["dur"] *= 1000
    with pytest.raises(TraceFormatError, match="different units"):
        read(tmp_path, found)
