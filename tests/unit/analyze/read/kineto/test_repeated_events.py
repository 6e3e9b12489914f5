"""Events that a file holds more than once: tools that join or filter traces write them again."""

import copy

import pytest
from tests.kineto_files import kernel, launched, operator, step, write
from tests.texts import texts

from meshscope.analyze.read import import_trace

TABLES = ("kernel", "op", "runtime_call", "step", "span", "collective")


def events():
    """Return two steps of operators, launches and kernels, and one collective, in microseconds."""
    found = [step(number, 1000 + number * 1000, 1000) for number in range(2)]
    for place in range(20):
        at = 1000 + place * 100
        found.append(operator("aten::mm", at + 5, 40))
        found += launched("gemm", at + 10, at + 50, 40, place + 1)
    known = {"Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float", "Group size": 2}
    found.append(kernel("ncclDevKernel_AllReduce", 2990, 5, 99, stream=20, **known))
    return found


def counts(trace):
    """Return the rows of each table."""
    return {name: len(trace.frame(name)) for name in TABLES}


def read(tmp_path, found, name="rank0.json"):
    """Return the trace and what is said of it."""
    trace = import_trace(write(tmp_path / name, found))
    return trace, " ".join(texts(trace.limits))


@pytest.mark.parametrize("way", ["behind", "beside", "other ids", "half", "kernels", "host"])
def test_events_that_are_written_twice_count_once(tmp_path, way):
    """Fails when kernels are busy for 200 % of a step, or collectives have no partner on other ranks."""
    once, said = read(tmp_path, events())
    assert "more than once" not in said
    found = events()
    again = copy.deepcopy(found)
    if way == "other ids":
        for event in again:
            event["args"] = {
                **event.get("args", {}),
                "External id": event.get("args", {}).get("External id", 0) + 1000,
            }
    chosen = {
        "half": again[: len(again) // 2],
        "kernels": [event for event in again if event["cat"] == "kernel"],
        "host": [event for event in again if event["cat"] != "kernel"],
    }.get(way, again)
    twice = found + chosen
    if way == "beside":
        twice = [event for event in found for _ in range(2)]
    trace, said = read(tmp_path, twice, "rank0_twice.json")
    assert counts(trace) == counts(once)
    assert trace.frame("kernel")["dur_ns"].sum() == once.frame("kernel")["dur_ns"].sum()
    assert f"{len(twice) - len(found)} events written more than once, counted once" in said


def test_like_events_that_are_none_twice_stay(tmp_path):
    """Fails when two kernels on two streams, or operators that nest, lose one of them."""
    found = [
        step(0, 1000, 1000),
        operator("aten::copy_", 1005, 40),
        operator("aten::copy_", 1005, 40),
        kernel("gemm", 1100, 40, 1, stream=7),
        kernel("gemm", 1100, 40, 2, stream=8),
        kernel("gemm", 1140, 40, 3, stream=7),
        kernel("tiny", 1200, 0, 4, stream=7),
        kernel("tiny", 1200, 0, 5, stream=7),
    ]
    trace, said = read(tmp_path, found)
    assert (len(trace.frame("kernel")), len(trace.frame("op"))) == (5, 2)
    assert "more than once" not in said
