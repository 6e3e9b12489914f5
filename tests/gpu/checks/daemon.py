"""A deep trace of a few steps by Kineto's own client, which our daemon tells what to record."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from meshscope.probe.deep.kineto_fabric import (
    DAEMON_VARIABLE,
    DIRECTORY_VARIABLE,
    LOG_VARIABLE,
    SILENT,
    KinetoDaemon,
    configuration,
)

from .context import Context

_JOB = Path(__file__).with_name("daemon_job.py")
_STEPS = 3
_AHEAD_S = 12.0
"""The client asks every 5 s, and needs to know before the first step."""
_MOST_KEPT_BYTES = 8 << 20
_SLACK_NS = 1_000_000_000
_MOST_STALL_MS = 50.0


def daemon_trace(context: Context) -> None:
    """Have a running job trace three steps; tell what the trace holds and what it cost."""
    with tempfile.TemporaryDirectory(prefix="msk-") as folder:
        os.chmod(folder, 0o700)
        server = KinetoDaemon(Path(folder))
        server.start()
        job = _start(context, Path(folder))
        try:
            trace_path = _trace(context, server, job)
        finally:
            (context.work / "stop").touch()
            _end(job)
            server.stop()
    context.figure("refused_datagrams", server.refused)
    if trace_path is not None:
        _look(context, trace_path)


def _start(context: Context, sockets: Path) -> subprocess.Popen[bytes]:
    here = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, DAEMON_VARIABLE: "1", DIRECTORY_VARIABLE: str(sockets),
                   LOG_VARIABLE: SILENT, "PYTHONPATH": path}  # fmt: skip
    command = [sys.executable, str(_JOB), context.device, str(context.work), str(context.seconds)]
    return subprocess.Popen(command, env=environment)


def _end(job: subprocess.Popen[bytes]) -> None:
    """Wait for the job; end it by force where it does not stop by itself."""
    try:
        job.wait(20)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def _trace(context: Context, server: KinetoDaemon, job: subprocess.Popen[bytes]) -> Path | None:
    """Order the trace and wait for the file; None where none came."""
    begin = time.monotonic()
    _until(lambda: job.pid in server.clients() or job.poll() is not None, 40)
    if job.poll() is not None:
        context.expect(False, f"the job ended with {job.poll()}; see the log")
        return None
    context.expect(job.pid in server.clients(), "Kineto's client never asked")
    context.figure("client_asked_after_s", round(time.monotonic() - begin, 1))
    if not _until(lambda: _progress(context).get("iterations", 0) > 2, 20):
        context.expect(False, f"Kineto counts no steps: {_progress(context)}")
        return None
    before = _progress(context)
    time.sleep(1)
    now = _progress(context)
    pace = max(now["iterations"] - before["iterations"], 1)
    first = now["iterations"] + int(pace * _AHEAD_S)
    path = context.work / "trace.json"
    server.order(job.pid, configuration(path, first - 1, _STEPS))
    ordered = time.monotonic()
    wanted = context.work / f"trace_{job.pid}.json"
    came = _until(lambda: _is_whole(wanted), _AHEAD_S + 25)
    context.expect(came, "no trace came; files: " + ", ".join(_names(context.work)))
    context.figure("trace_after_s", round(time.monotonic() - ordered, 1))
    return wanted if came else None


def _until(condition: Callable[[], Any], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def _progress(context: Context) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads((context.work / "progress.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _is_whole(path: Path) -> bool:
    """Tell whether Kineto has written the last bracket."""
    try:
        with path.open("rb") as file:
            file.seek(-min(64, path.stat().st_size), os.SEEK_END)
            return file.read().rstrip().endswith(b"}")
    except OSError:
        return False


def _look(context: Context, path: Path) -> None:
    """Tell what the trace holds, and how long the steps around it took."""
    text = path.read_bytes()
    trace = json.loads(text)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    categories = Counter(str(event.get("cat")) for event in events)
    context.figure("events", dict(categories))
    context.figure("trace_bytes", len(text))
    context.figure("top_level", sorted(set(trace) - {"traceEvents"}))
    # The device has ranges of the same names.
    on_host = [event for event in events if event.get("cat") == "user_annotation"]
    optimizer = sum(str(e.get("name", "")).startswith("Optimizer.step") for e in on_host)
    context.figure("optimizer_steps", optimizer)
    context.expect(optimizer == _STEPS, f"{optimizer} optimizer steps for {_STEPS} that were asked")
    communication = [e for e in events if e.get("name") == "record_param_comms"]
    names = sorted({key for event in communication for key in event.get("args", {})})
    context.figure("record_param_comms", {"events": len(communication), "fields": names})
    context.figure("has_seq", "Seq" in names)
    if context.device == "cuda":
        context.expect(categories["kernel"] > 0, "the trace holds no kernel")
        runtime = categories["cuda_runtime"] + categories["cuda_driver"]
        context.expect(runtime > 0, "the trace holds no call of the CUDA runtime")
    # What is kept may become test data: it does not name the machine.
    kept = json.dumps({**trace, "host_name": "host"}, separators=(",", ":"))
    packed = gzip.compress(kept.encode(), mtime=0)
    context.figure("packed_bytes", len(packed))
    if len(packed) <= _MOST_KEPT_BYTES:
        name = f"kineto-daemon-{context.device}.json.gz"
        (context.out / name).write_bytes(packed)
    _stall(context, trace, events)


def _stall(context: Context, trace: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """Compare the slowest step near the trace with the steps far from it."""
    times = np.array(json.loads((context.work / "steps.json").read_text()), dtype=np.int64)
    to_unix_ns = time.time_ns() - time.monotonic_ns()
    base_ns = int(trace.get("baseTimeNanoseconds") or 0)
    starts = [base_ns + int(event["ts"] * 1e3) for event in events] or [0]
    begin, end = min(starts) - to_unix_ns - _SLACK_NS, max(starts) - to_unix_ns + 3 * _SLACK_NS
    took_ms = (times[:, 1] - times[:, 0]) / 1e6
    near = (times[:, 1] > begin) & (times[:, 0] < end)
    steady = ~near & (np.arange(len(times)) > 10)
    context.figure("steps", len(times))
    if near.any() and steady.any():
        context.figure("worst_step_near_ms", round(float(took_ms[near].max()), 2))
        context.figure("median_step_ms", round(float(np.median(took_ms[steady])), 2))
        context.figure("worst_step_ms", round(float(took_ms[10:].max()), 2))
        context.figure("p99_step_ms", round(float(np.percentile(took_ms[steady], 99)), 2))
        stall = float(took_ms[near].max() - np.median(took_ms[steady]))
        context.figure("stall_ms", round(stall, 2))
        # The busy cores of a machine without a GPU say nothing about the bound.
        context.expect(
            context.device != "cuda" or stall <= _MOST_STALL_MS,
            f"a step near the trace took {stall:.0f} ms more than usual",
        )
    else:
        context.expect(False, "the trace lies in no step of the job")
