"""The shipped batch script, with a stand-in for srun that starts two tasks as SLURM would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import as_file, files

import pytest

pytestmark = pytest.mark.distributed

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for task in 0 1; do
    SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0 \\
        SLURM_STEP_NODELIST=localhost SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    tasks+=($!)
done
for one in "${tasks[@]}"; do wait "$one" || exit; done
"""


@pytest.mark.sampled(keep=())
def test_the_batch_script_starts_ranks_that_find_each_other(tmp_path):
    """Fails if a SLURM job does not train, or its arguments do not reach the trainer."""
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    known = {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}
    job = {
        "PATH": f"{tmp_path}{os.pathsep}{known['PATH']}",
        "PYTHON": sys.executable,
        "OUT": str(tmp_path / "out"),
        "SLURM_JOB_ID": str(os.getpid()),
        "OMP_NUM_THREADS": "1",
    }
    with as_file(files("meshscope.reference_trainer") / "configs" / "train.sbatch") as script:
        command = ["bash", str(script), "--preset", "tiny", "--set", "train.steps=3"]
        result = subprocess.run(
            command, env=known | job, capture_output=True, text=True, timeout=120, check=False
        )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 3
    assert len(json.loads((tmp_path / "out" / "losses.json").read_text())["loss"]) == 3
