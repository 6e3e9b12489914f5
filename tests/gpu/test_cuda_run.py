"""The trainer on a GPU under the probe."""

import subprocess
import sys
from pathlib import Path

import pytest

from meshscope.analyze import diagnose, load_trace

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

STEPS = 6


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_cuda_run_is_recorded_with_its_memory(tmp_path: Path, backend: str):
    """If this fails, a run on real devices has no memory figures, or cannot be diagnosed."""
    trainer = ["-m", "meshscope.reference_trainer", "--preset", "tiny", "--set", "layout.pp=1"]
    trainer += ["--set", "device.kind=cuda", "--set", f"device.backend={backend}"]
    trainer += ["--set", f"train.steps={STEPS}"]
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "1",
    ]
    probe = [sys.executable, "-m", "meshscope", "run", "--runs", str(tmp_path), "--run-id", "gpu"]
    subprocess.run([*probe, "--", *launch, *trainer], check=True, timeout=300)
    trace = load_trace(tmp_path / "gpu")
    memory = trace.frame("memory")
    assert len(trace.frame("step")) == STEPS
    assert (memory["allocated_bytes"] > 0).all()
    assert (memory["capacity_bytes"] > memory["peak_bytes"]).all()
    assert not str(trace.run["device_name"]).startswith("CPU")
    assert diagnose(trace).memory["peak_frac"].notna().all()
