"""The checks of the standalone script: all on a GPU, its plumbing everywhere."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("standalone.py")
CHECKS = [
    "machine",
    "devices",
    "event_cost",
    "event_times",
    "span_cost",
    "collectives",
    "stream_waits",
    "cuda_graphs",
    "compiled",
    "daemon_trace",
    "armed_trace",
    "two_ranks",
    "overhead",
]


def run(*arguments):
    """Run the script and return what it printed and its exit code."""
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_on_a_gpu(name: str, tmp_path: Path):
    """Fails when a check fails on a real GPU; it tells why."""
    done = run("--only", name, "--out", str(tmp_path), "--device", "cuda")
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()


def test_the_script_knows_every_check():
    """Fails when a check is listed that no test here runs, or the other way round."""
    done = run("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == CHECKS


def test_a_check_leaves_its_figures_and_a_table(tmp_path: Path):
    """Fails when the script cannot run without a GPU, or loses what a check found."""
    names = ("span_cost", "event_cost", "cuda_graphs")
    done = run("--only", *names, "--out", str(tmp_path), "--device", "cpu")
    assert done.returncode == 0, done.stdout
    checks = json.loads((tmp_path / "results.json").read_text())["checks"]
    assert checks["span_cost"]["state"] == "passed"
    assert checks["span_cost"]["figures"]["spans_us"]["min"] > 0
    assert {checks[name]["skipped"] for name in names[1:]} == {"needs a GPU"}
    assert "3 checks, 0 failed" in done.stdout


def test_a_check_that_takes_too_long_is_a_failure(tmp_path: Path):
    """Fails when a hanging check hangs the script, or counts as passed."""
    done = run(
        "--only", "daemon_trace", "--out", str(tmp_path), "--device", "cpu", "--seconds", "7"
    )
    assert done.returncode == 1
    assert "was ended after 2 s" in done.stdout


def test_spans_are_compared_with_the_kernels_that_they_launched():
    """Fails when a span's device time is compared with kernels of another span."""
    path = SCRIPT.parent / "checks" / "kernels.py"
    spec = importlib.util.spec_from_file_location("kernels_of_traces", path)
    kernels_module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels_module)
    trace = {
        "baseTimeNanoseconds": 1_000_000,
        "traceEvents": [
            event("cuda_runtime", 10.0, 1.0, 1),
            event("cuda_runtime", 12.0, 1.0, 2),
            event("kernel", 50.0, 5.0, 1),
            event("kernel", 56.0, 4.0, 2),
            event("cuda_runtime", 30.0, 1.0, 3),
            event("kernel", 70.0, 2.0, 3),
            event("kernel", 90.0, 2.0, 4),
            {"ph": "i", "name": "mark", "ts": 1},
        ],
    }
    kernels = kernels_module.kernels_of(trace)
    assert kernels.shape == (3, 3)
    spans = {
        "start_ns": np.array([9_000, 29_000, 40_000]),
        "dur_ns": np.array([5_000, 5_000, 5_000]),
        "device_start_ns": np.array([49_000, 70_500, 80_000]),
        "device_dur_ns": np.array([11_000, 2_100, 100]),
    }
    found = kernels_module.compare(spans, kernels, 1_000_000)
    assert found.device_ns.tolist() == [11_000, 2_100]
    assert found.kernel_ns.tolist() == [10_000, 2_000]
    assert found.start_error_ns.tolist() == [-1_000, 500]


def event(category, start_us, dur_us, correlation):
    """Return an event of a Kineto trace."""
    args = {"correlation": correlation}
    return {"ph": "X", "cat": category, "ts": start_us, "dur": dur_us, "args": args}
