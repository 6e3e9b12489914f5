"""The page of kernels says what ``meshscope kernels`` says, of a trace that has them."""

import json

import pytest
from plotly.utils import PlotlyJSONEncoder

from meshscope.analyze import load_trace
from meshscope.analyze.output.json import kernels_to_json
from meshscope.analyze.output.text.amounts import shortened
from meshscope.dashboard import create_app
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.runs.store import RunStore

HOSTILE = "void gemm<b onmouseover=1><img src=x>%{y}"


def _event(name: str, kind: str, start: float, length: float, **args) -> dict:
    on_device = kind == "kernel"
    place = {"pid": 0, "tid": 7} if on_device else {"pid": 100, "tid": 100}
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": length, **place, "args": args}


@pytest.fixture
def store(tmp_path):
    """Return a folder with a profiler's trace: a matrix product with shapes, and a wait for the device."""
    shapes = {
        "Input Dims": [[256, 512], [512, 128]],
        "Input type": ["float", "float"],
        "External id": 1,
    }
    events = [
        _event("aten::mm", "cpu_op", 0, 30, **shapes),
        _event("cudaLaunchKernel", "cuda_runtime", 10, 5, correlation=1, **{"External id": 1}),
        _event(HOSTILE, "kernel", 20, 80, correlation=1, device=0, stream=7, **{"External id": 1}),
        _event("cudaDeviceSynchronize", "cuda_runtime", 40, 65, correlation=2),
        _event("aten::mm", "cpu_op", 150, 30, **shapes | {"External id": 2}),
        _event("cudaLaunchKernel", "cuda_runtime", 160, 5, correlation=3, **{"External id": 2}),
        _event(HOSTILE, "kernel", 170, 80, correlation=3, device=0, stream=7, **{"External id": 2}),
    ]
    about = {"distributedInfo": {"rank": 0, "world_size": 1}, "deviceProperties": []}
    folder = tmp_path / "runs" / "traced"
    folder.mkdir(parents=True)
    (folder / "rank0.json").write_text(
        json.dumps({"schemaVersion": 1, "traceEvents": events, **about})
    )
    return RunStore(tmp_path / "runs")


def test_the_page_says_what_the_command_says(store):
    """Fails when an operator, its shapes or its speed, or a call that waits, is missing on the page."""
    result = kernels_to_json(load_trace(store.path_of("traced")))
    text = json.dumps(page_of(store, "/run/traced/kernels", "?rank=0"), cls=PlotlyJSONEncoder)
    (operator,) = [row for row in result["operators"] if row["operator"] == "aten::mm"]
    assert operator["flops_per_s"] == pytest.approx(2 * 256 * 512 * 128 * 2 / 160e-6)
    (wait,) = result["host_waits"]
    assert "419 GFLOP/s" in text
    for name in (operator["operator"], operator["shapes"], wait["call"], HOSTILE):
        assert json.dumps(shortened(name))[1:-1] in text
    # Words, not markup: React writes what is in a span as it is.
    assert '"type": "Markdown"' not in text


def test_the_answer_for_programs_is_the_same(store):
    """Fails when a program gets other kernels than the page and the command show."""
    client = create_app(store.root).server.test_client()
    answer = client.get("/api/v1/runs/traced/kernels.json").json
    assert answer.pop("run_id") == "traced"
    assert answer == kernels_to_json(load_trace(store.path_of("traced")))


def test_each_device_of_a_process_has_a_row(tmp_path):
    """Fails when the page takes the devices of one process as one and shows no other account."""
    events = [
        _event("gemm", "kernel", 0, 80, correlation=1, device=0, stream=7),
        _event("gemm", "kernel", 20, 20, correlation=2, device=1, stream=7),
    ]
    folder = tmp_path / "runs" / "traced"
    folder.mkdir(parents=True)
    (folder / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    store = RunStore(tmp_path / "runs")
    text = json.dumps(page_of(store, "/run/traced/kernels", "?rank=0"), cls=PlotlyJSONEncoder)
    for word in ("Each device of one rank", "rank 0, device 0", "rank 0, device 1", "75.0 %"):
        assert word in text
