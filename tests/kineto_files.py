"""A small writer of profiler files for tests: events in microseconds, one rank a file."""

from __future__ import annotations

import json
from pathlib import Path

HOST, DEVICE = 100, 0


def complete(cat, name, ts, dur, tid=1, pid=HOST, **args):
    """Return one complete event of a thread, or of a stream of a device."""
    return {
        "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args,
    }  # fmt: skip


def step(number, ts, dur):
    """Return the mark of one profiler step."""
    return complete("user_annotation", f"ProfilerStep#{number}", ts, dur)


def operator(name, ts, dur, **args):
    """Return one operator on the first thread."""
    return complete("cpu_op", name, ts, dur, **args)


def call(name, ts, dur, correlation=0, tid=1):
    """Return one call into the runtime."""
    return complete("cuda_runtime", name, ts, dur, tid=tid, correlation=correlation)


def kernel(name, ts, dur, correlation=0, stream=7, **args):
    """Return one kernel."""
    place = {"device": 0, "stream": stream, "correlation": correlation}
    return complete("kernel", name, ts, dur, tid=stream, pid=DEVICE, **place | args)


def launched(name, at, ts, dur, correlation, **args):
    """Return a launch of 5 us and its kernel."""
    return [
        call("cudaLaunchKernel", at, 5, correlation),
        kernel(name, ts, dur, correlation, **args),
    ]


def write(path: Path, events, rank=0, world_size=1, **header):
    """Write one file, with a header that names the rank."""
    info = {"backend": "nccl", "rank": rank, "world_size": world_size}
    device = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    document = {"schemaVersion": 1, "deviceProperties": device, "distributedInfo": info} | header
    path.write_text(json.dumps(document | {"traceEvents": events}))
    return path
