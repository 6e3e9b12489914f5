"""Runs one live job under the probe."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.truth.live.cases import LiveCase, Way

TIMEOUT_S = 300
STANDSTILL_S = 6
"""How long a job that hangs is left alone before it is ended, as a watchdog would."""


class JobError(RuntimeError):
    """The training run did not end as it should; the message has the end of its output."""


def run_job(case: LiveCase, folder: Path) -> tuple[Path, Path]:
    """Run a job, and return its run directory and the folder of its ground truth.

    A job of several faults is run for the first of its cases.

    Raises:
        JobError: It did not end as it should, or not in time.
    """
    runs, truth = folder / "runs", folder / "truth" / case.run
    if case.part and truth.exists():
        return runs / case.run, truth
    command = [
        *(sys.executable, "-m", "meshscope", "run", "--runs", str(runs), "--run-id", case.run),
        *("--", sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc_per_node", str(case.layout.world_size), "-m", *case.trainer(truth)),
    ]
    # One thread per rank, which is what torchrun would set with a warning; all steps are compared.
    all_steps = {
        "MESHSCOPE_FULL_FIRST_STEPS": str(case.steps),
        "MESHSCOPE_COST_BUDGET_PPM": "0",
    }
    environment = {**os.environ, **all_steps, "OMP_NUM_THREADS": "1"}
    log = folder / f"{case.run}.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        ) as process,
    ):
        try:
            if case.way is Way.FATAL and case.kinds == ("hang",):
                _end_after_standstill(process, truth)
            process.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Passed on to the launcher, which ends the ranks; each has a session of its own.
            process.terminate()
            raise JobError(f"{case.name}: not done after {TIMEOUT_S} s") from None
    if bool(process.returncode) != (case.way is Way.FATAL):
        end = log.read_text("utf-8", errors="replace")[-2000:]
        raise JobError(f"{case.name}: exit code {process.returncode}: {end}")
    return runs / case.run, truth


def _end_after_standstill(process: subprocess.Popen[bytes], truth: Path) -> None:
    """End a job some time after its ground truth says that a rank stands still."""
    for _ in range(TIMEOUT_S):
        time.sleep(1)
        files = truth.glob("ground_truth.rank*.jsonl")
        if any('"record": "fault"' in path.read_text("utf-8") for path in files):
            time.sleep(STANDSTILL_S)
            break
        if process.poll() is not None:
            return
    process.terminate()
