"""A job that its launcher restarts is one run of two attempts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.texts import texts

from meshscope.analyze import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.probe.schema.manifest import part_directories

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

JOB = Path(__file__).with_name("elastic_job.py")
STEPS, DIES_AT = 12, 5


def test_an_elastic_restart_joins_the_same_run(tmp_path, project_dir, free_port):
    """Fails when the second attempt is lost, mixed with the first, or blamed for its death."""
    command = [
        sys.executable, "-m", "meshscope", "run", "--runs", str(tmp_path), "--run-id", "a", "--",
        sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--max-restarts", "1", "--monitor-interval", "0.1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
        str(JOB), str(STEPS), str(DIES_AT),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": str(project_dir / "src"),
        "OMP_NUM_THREADS": "1",
        "XDG_RUNTIME_DIR": "",
        # Else the workers of the second attempt read the addresses of the first one from the
        # launcher's store (pytorch issue 135712).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    run = tmp_path / "a"
    assert {rank: list(parts) for rank, parts in part_directories(run).items()} == {
        0: [1, 2],
        1: [1, 2],
    }
    trace = load_trace(run)
    steps = trace.frame("step").groupby("rank")["step"].agg(["nunique", "max"])
    assert steps.loc[1].to_list() == [DIES_AT + STEPS, steps.loc[0, "max"]]
    first = steps.loc[0, "max"] + 1 - STEPS
    assert any(
        f"Attempt 2 of the job begins at step {first}" in limit for limit in texts(trace.limits)
    )
    collective = trace.frame("collective")
    sums = collective[collective["kind"] == "all_reduce"]
    seen = sums[sums["step"] >= first].groupby("step")["rank"].nunique()
    assert list(seen) == [2] * STEPS
    first_try, second_try = trace.tables["attempt"].to_pylist()
    assert (first_try["ended_rank"], first_try["wait_status"]) == (1, signal.SIGKILL)
    assert (second_try["ended_rank"], second_try["wait_status"]) == (None, None)
    assert not [finding for finding in diagnose(trace).findings if finding.kind == "hang"]
