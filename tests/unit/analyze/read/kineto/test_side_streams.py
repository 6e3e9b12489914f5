"""Kernels that no rule knows: which may communicate, and which are ordinary computation."""

import json

import pytest
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.account.kernels.breakdown import device_breakdown
from meshscope.analyze.output.json import breakdown_to_json
from meshscope.analyze.read import import_trace


def event(cat, name, ts, dur, **args):
    """Return one complete event; times in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}  # fmt: skip


def launched(name, ts, dur, *, stream, call, op=None, grid=(8, 1, 1)):
    """Return a kernel with its launch, and with the operator around that if ``op`` names it."""
    place = {"device": 0, "stream": stream, "correlation": call, "grid": list(grid)}
    events = [event("cuda_runtime", "cudaLaunchKernel", ts - 5, 1, correlation=call)]
    if op is not None:
        events.append(event("cpu_op", op, ts - 6, 4, **{"External id": call}))
        place["External id"] = call
    return [*events, event("kernel", name, ts, dur, **place)]


COMPUTATION = [
    *launched("gemm", 100, 50, stream=7, call=1, op="aten::mm"),
    *launched("gemm", 200, 50, stream=7, call=2, op="aten::mm"),
]


def categories(folder, *kernels):
    """Return the category of each kernel name in a file of ordinary computation and these."""
    events = [*COMPUTATION, *(one for kernel in kernels for one in kernel)]
    (folder / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = import_trace(folder)
    names = trace.frame("name").set_index("name_id")["name"]
    kernel = trace.frame("kernel")
    found = dict(zip(names[kernel["name_id"]], kernel["category"].astype(str), strict=True))
    return found, trace


def test_a_library_on_a_side_stream_may_communicate(tmp_path):
    """Communication of a library that we do not know would be called computation."""
    found, trace = categories(tmp_path, launched("dispatch<4>", 120, 60, stream=20, call=3))
    assert found == {"gemm": "compute", "dispatch<4>": "unknown"}
    row = device_breakdown(trace).iloc[0]
    assert row[["computation_ns", "unknown_ns", "exposed_unknown_ns"]].tolist() == [
        100_000,
        60_000,
        30_000,
    ]
    assert any("1 kernel (60.0 us) on stream 20" in limit for limit in texts(trace.limits))
    limits = breakdown_to_json(trace)["limits"]
    assert any("[kernels]" in limit and "30.0 us" in limit for limit in limits)


@pytest.mark.parametrize(
    "kernel",
    [
        launched("k", 120, 60, stream=20, call=3, op="aten::add"),
        launched("k", 120, 60, stream=7, call=3),
        launched("k", 120, 60, stream=20, call=3, grid=(1, 1, 1)),
        launched("k", 160, 20, stream=20, call=3),
    ],
    ids=["operator", "stream that computes", "one block", "no overlap"],
)
def test_ordinary_work_raises_no_alarm(tmp_path, kernel):
    """Computation on several streams would be taken out of the account of computation."""
    found, _ = categories(tmp_path, kernel)
    assert found["k"] == "compute"


def test_a_replayed_graph_raises_no_alarm(tmp_path):
    """Fails when the computation that a captured graph puts on any stream is taken for communication."""
    also = event("kernel", "b", 130, 5, device=0, stream=21, correlation=3, grid=[8, 1, 1])
    graph = [*launched("a", 120, 60, stream=20, call=3), also]
    found, _ = categories(tmp_path, graph)
    assert (found["a"], found["b"]) == ("compute", "compute")


def test_without_operators_nothing_is_said(tmp_path):
    """A file that records no operators would have all its side streams suspected."""
    events = launched("gemm", 100, 50, stream=7, call=1) + launched("k", 120, 9, stream=9, call=2)
    (tmp_path / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert set(import_trace(tmp_path).frame("kernel")["category"]) == {"compute"}


@pytest.mark.traces
@pytest.mark.parametrize(
    "folder", ["param", "hta/trace_filter", "hta/nccl_parser_config", "hta/ns_resolution_trace"]
)
def test_real_traces_raise_no_alarm(traces_dir, folder):
    """Second streams of real jobs, with copies and memory sets, would be suspected."""
    trace = load_trace(traces_dir / folder)
    assert device_breakdown(trace)["unknown_events"].sum() == 0


@pytest.mark.traces
def test_fused_kernels_of_a_real_trace_are_stated(traces_dir):
    """Reductions over the memory of other devices would pass as plain computation."""
    result = breakdown_to_json(load_trace(traces_dir / "tracelens" / "b200"))
    row = result["ranks"]["0"]
    assert (row["unknown_events"], round(row["unknown_ns"] / 1e3)) == (73, 2120)
    assert row["exposed_unknown_ns"] == 0
    assert any("73 device activities" in limit for limit in result["limits"])
