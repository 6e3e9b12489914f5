"""What torch's DDP on gloo shows of a slow rank, and with which setting."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshscope.analyze import diagnose, load_trace

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.alone]

SCRIPT = Path(__file__).with_name("ddp_job.py")


def diagnosed(path, *arguments):
    """Return the diagnosis of the job under ``meshscope run``."""
    probe = [sys.executable, "-m", "meshscope", "run", "--runs", path, "--run-id", "run", "--"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*probe, sys.executable, *launch, SCRIPT, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )
    return diagnose(load_trace(path / "run"))


def test_plain_ddp_names_no_slow_rank_and_says_why(tmp_path):
    """Fails when a wait that nobody saw is called work of the rank that waited."""
    found = diagnosed(tmp_path)
    assert not any(finding.kind == "straggler_rank" for finding in found.findings)
    assert any("where the ends of operations are not seen" in line for line in found.untold)


def test_a_hook_that_waits_shows_the_slow_rank(tmp_path):
    """Fails when the setting that the documentation names does not show who makes others wait."""
    found = diagnosed(tmp_path, "--shown")
    (straggler,) = (one for one in found.findings if one.kind == "straggler_rank")
    assert straggler.where["rank"] == 1
