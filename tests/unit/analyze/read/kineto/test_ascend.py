"""Traces of the Ascend profiler: its flows say which call and which operator launched what."""

import json

import pytest

from meshscope.analyze import diagnose, load_trace

STEP = 100_000
HOST, CANN, NPU = {"pid": 1, "tid": 11}, {"pid": 2, "tid": 22}, {"pid": 3, "tid": 5}


def _flow(kind, id_, ts, begin, end, end_ts):
    name = {"cat": kind, "name": kind, "id": id_, "bp": "e"}
    return [
        {"ph": "s", "ts": f"{ts}.000", **name, **begin},
        {"ph": "f", "ts": f"{end_ts}.000", **name, **end},
    ]


def trace(tmp_path, *, kinds=("HostToDevice", "async_npu"), queue=True):
    """Return four rounds of 60 ms of work, launched at 1 ms by a queue, then a wait of 70 ms in one call.

    The operator lasts from 0 to 0.1 ms.
    """
    events = [{"ph": "M", "name": "process_name", **NPU, "args": {"name": "Ascend Hardware"}}]
    for number in range(4):
        at = 1000 + number * STEP
        launch = at + 1000 if queue else at + 10
        begun = launch + 20
        task = {"Task Type": "AI_CORE", "Stream Id": 5, "Task Id": number}
        call = {"ph": "X", "cat": "", **CANN}
        events += [
            {"ph": "X", "cat": "cpu_op", "name": f"ProfilerStep#{number}", "ts": f"{at}.000"}
            | {"dur": STEP, **HOST},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": f"{at}.000", "dur": 100, **HOST},
            call | {"name": "Node@launch", "ts": launch, "dur": 8, "args": {"level": "node"}},
            {
                "ph": "X",
                "name": "MatMulV2",
                "ts": f"{begun}.000",
                "dur": 60_000,
                **NPU,
                "args": task,
            },
            call
            | {"name": "AscendCL@aclrtSynchronizeStreamWithTimeout", "ts": launch + 30}
            | {"dur": 70_000, "args": {"level": "acl"}},
        ]
        if "HostToDevice" in kinds:
            events += _flow("HostToDevice", str(81 + number), launch, CANN, NPU, begun)
        if "async_npu" in kinds:
            events += _flow("async_npu", begun * 1000, at, HOST, NPU, begun)
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    return load_trace(path)


def _delays(found):
    kernel = found.frame("kernel")
    return (kernel["start_ns"] - kernel["launch_ns"]).tolist()


def test_work_is_linked_to_the_call_that_launched_it(tmp_path):
    """Fails when nothing is known of why such a device idles."""
    found = trace(tmp_path)
    assert _delays(found) == [20_000] * 4
    ops = found.frame("op").merge(found.frame("name"), on="name_id").set_index("op_id")["name"]
    assert found.frame("kernel")["op_id"].map(ops).tolist() == ["aten::mm"] * 4


def test_without_calls_of_the_library_the_operator_launches(tmp_path):
    """Fails when a trace of the framework alone has no launches."""
    assert _delays(trace(tmp_path, kinds=("async_npu",), queue=False)) == [30_000] * 4


def test_without_operators_the_call_launches(tmp_path):
    """Fails when a launch is known by its operator only."""
    found = trace(tmp_path, kinds=("HostToDevice",))
    assert _delays(found) == [20_000] * 4
    assert found.frame("kernel")["op_id"].tolist() == [-1] * 4


def test_idle_time_has_its_causes(tmp_path):
    """Fails when calls of the library are no calls, so that a host that waits seems to do nothing."""
    found = diagnose(trace(tmp_path))
    claims = [str(one.claim) for one in found.findings]
    assert any("still in a call that waited" in claim for claim in claims)
    assert not any("cause unknown" in claim for claim in claims)
    share = {one.cause: one.cost_frac for one in found.findings}
    assert share["synchronise"] == pytest.approx(0.10, abs=0.001)
