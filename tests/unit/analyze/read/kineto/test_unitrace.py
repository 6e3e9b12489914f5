"""Traces of unitrace: its flows say which call launched what."""

import json

from meshscope.analyze import diagnose, load_trace

DEVICE = 2**32 - 1
STEP = 100_000


def trace(tmp_path):
    """Return four rounds of 60 ms of work, launched at their begin, then a wait of 70 ms in one call."""
    events = []
    for number in range(4):
        at, id_ = 1000 + number * STEP, number + 1
        host, device = {"pid": 100, "tid": 100}, {"pid": DEVICE, "tid": DEVICE - 1}
        call = {"ph": "X", "cat": "cpu_op", "dur": 8, "ts": at, "id": 0, **host}
        flow = {"name": "dep", "cat": f"Flow_H2D_{id_}_0", "id": id_}
        events += [
            call | {"name": "zeCommandListAppendLaunchKernel"},
            {"ph": "s", "ts": at, **flow, **host},
            {"ph": "X", "cat": "gpu_op", "name": "gemm", "ts": at + 20, "dur": 60_000, **device}
            | {"args": {"id": str(id_)}},
            {"ph": "t", "ts": at + 20, **flow, **device},
            {"ph": "s", "ts": at + 20, **flow, **device} | {"cat": f"Flow_D2H_{id_}_0"},
            call | {"name": "zeEventHostSynchronize", "ts": at + 10, "dur": 70_010},
        ]
    path = tmp_path / "python.1.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return load_trace(path)


def test_work_is_linked_to_the_call_that_launched_it(tmp_path):
    """Fails when nothing is known of why such a device idles."""
    found = trace(tmp_path)
    kernel = found.frame("kernel")
    assert (kernel["start_ns"] - kernel["launch_ns"]).tolist() == [20_000] * 4
    assert kernel["device"].unique().tolist() == [0]


def test_idle_time_has_its_causes(tmp_path):
    """Fails when calls of Level Zero are operators, so that a host that waits seems to compute."""
    claims = [str(one.claim) for one in diagnose(trace(tmp_path)).findings]
    assert any("still in a call that waited" in claim for claim in claims)
    assert not any("cause unknown" in claim for claim in claims)
