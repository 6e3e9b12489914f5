"""A deep trace as users ask for it: a job under ``meshscope run``, then ``meshscope arm``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .context import Context

_JOB = Path(__file__).with_name("daemon_job.py")
_NEEDED = ("typer", "rich", "nanoarrow", "pyarrow", "pandas", "msgspec", "isal")
_STEPS = 3


def armed_trace(context: Context) -> None:
    """Record the same three steps by Kineto's client and in the process; tell the stall.

    Raises:
        NotHere: A package of the command line is missing.
    """
    context.need_packages(*_NEEDED)
    runs = context.work / "runs"
    job = _start(context, runs)
    try:
        _wait_for_steps(context, job)
        # The first request waits until Kineto's client has asked the agent once.
        time.sleep(6)
        for how in ("daemon", "in-process"):
            _arm(context, runs / "job", how)
    finally:
        (context.work / "stop").touch()
        try:
            job.wait(20)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait()


def _start(context: Context, runs: Path) -> subprocess.Popen[bytes]:
    here = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
    job = [sys.executable, str(_JOB), context.device, str(context.work), str(context.seconds)]
    command = [sys.executable, "-m", "meshscope", "run", "--runs", str(runs), "--run-id", "job"]
    # The job makes its group by itself; these say early which rank it is.
    environment = {**os.environ, "PYTHONPATH": path, "RANK": "0", "LOCAL_RANK": "0",
                   "WORLD_SIZE": "1"}  # fmt: skip
    return subprocess.Popen([*command, "--", *job], env=environment)


def _wait_for_steps(context: Context, job: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 40
    while time.monotonic() < end and job.poll() is None:
        try:
            if json.loads((context.work / "progress.json").read_text())["step"] > 20:
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the job does not train; it ended with {job.poll()}")


def _arm(context: Context, run_path: Path, how: str) -> None:
    """Ask for one trace and note what came."""
    command = [sys.executable, "-m", "meshscope", "arm", "--run", str(run_path), "--format", "json",
               "--steps", str(_STEPS), "--timeout", "30"]  # fmt: skip
    if how == "in-process":
        command.append("--in-process")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    context.expect(done.returncode == 0, f"{how}: {done.stderr.strip()[-300:]}")
    if not done.stdout.strip():
        return
    reported: dict[str, Any] = json.loads(done.stdout)
    context.expect(reported["how"] == how, f"{how} was wanted, {reported['how']} was used")
    trace = reported["traces"].get("0") or {}
    for name in ("steps", "operators", "device_events", "size_bytes", "stall_ns", "problem"):
        context.figure(f"{how}_{name}", trace.get(name))
    context.expect(len(trace.get("steps") or ()) == _STEPS, f"{how}: steps {trace.get('steps')}")
    if context.device == "cuda":
        context.expect(bool(trace.get("device_events")), f"{how}: the trace has no device events")
