"""Runs one live job under the probe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .cases import LiveCase

TIMEOUT_S = 300


class JobError(RuntimeError):
    """The training run did not end well; the message has the end of its output."""


def run_job(case: LiveCase, folder: Path) -> tuple[Path, Path]:
    """Run a job, and return its run directory and the folder of its ground truth.

    Raises:
        JobError: It ended with an error, or not in time.
    """
    runs, truth = folder / "runs", folder / "truth" / case.name
    command = [
        *(sys.executable, "-m", "meshscope", "run", "--runs", str(runs), "--run-id", case.name),
        *("--", sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc_per_node", str(case.layout.world_size), "-m", "meshscope.reference_trainer"),
        *("--preset", "demo", "--out", str(truth)),
        *(word for setting in case.settings() for word in ("--set", setting)),
        *(("--fault", case.request) if case.fault else ()),
    ]
    # One thread per rank, which is what torchrun would set with a warning.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            _, errors = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Passed on to the launcher, which ends the ranks; each has a session of its own.
            process.terminate()
            raise JobError(f"{case.name}: not done after {TIMEOUT_S} s") from None
    if process.returncode:
        raise JobError(f"{case.name}: exit code {process.returncode}: {errors[-2000:]}")
    return runs / case.name, truth
