"""A slow rank of a job with torch's DDP, whose reductions C++ code issues and waits for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.distributed.ddp_job import EXTRA_S, LAYERS

from meshscope.analyze import diagnose, load_trace

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.alone]

SCRIPT = Path(__file__).with_name("ddp_job.py")


@pytest.mark.parametrize("slow", ["forward", "backward"])
def test_the_slow_rank_is_named_and_priced(tmp_path, slow):
    """Fails when the wait for a slow rank hides in the backward of the others."""
    probe = [sys.executable, "-m", "meshscope", "run", "--runs", tmp_path, "--run-id", "run", "--"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*probe, sys.executable, *launch, SCRIPT, slow],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )
    trace = load_trace(tmp_path / "run")
    collectives = trace.frame("collective")
    in_step = collectives[(collectives["step"] >= 1) & (collectives["kind"] == "all_reduce")]
    assert len(in_step) >= 2 * 19 * LAYERS
    assert in_step["end_ns"].notna().mean() > 0.95
    result = diagnose(trace)
    (straggler,) = (one for one in result.findings if one.kind == "straggler_rank")
    assert straggler.where["rank"] == 1
    told_s = straggler.removal_gain_frac * result.step_time_ns / 1e9
    assert told_s == pytest.approx(EXTRA_S, rel=0.25)
    assert any(f"the excess is in {slow}" in line for line in straggler.evidence)
    assert not result.untold
