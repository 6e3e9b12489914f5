"""A job that stands still, of real processes: who did not arrive, and what it does instead."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.distributed.recorded_training import start_recorded, what_is_left

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.rules.hang import LONG_NS
from meshscope.analyze.load.load import load_trace
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import MANIFEST_NAME, STANDSTILL_KEY, rank_directory, read_json
from meshscope.reference_trainer.config.config import (
    DeviceConfig,
    ModelConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.fault_plan import parse_fault

pytestmark = pytest.mark.distributed

PATIENCE_S = 90
HANGS = "stand_still"
"""The function of the trainer in which the rank stands."""
LATE_JOB = Path(__file__).with_name("late_job.py")
LONG_S = LONG_NS / 1e9 + 2.0


def stack_of(run, rank):
    """Return the functions that a rank has noted so far."""
    try:
        annotations = read_json(rank_directory(run, rank) / MANIFEST_NAME)["annotations"]
    except (RunDirectoryError, OSError):
        return []
    return [function for function, *_ in annotations.get(STANDSTILL_KEY, {}).get("stack", [])]


def test_the_finding_tells_where_the_rank_stands_that_did_not_arrive(tmp_path):
    """Fails when a person on call must log in on a node to see what a rank does instead."""
    config = TrainerConfig(
        layout=ParallelLayout(dp=2),
        model=ModelConfig(layers=2, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16),
        schedule=ScheduleConfig(microbatches=1),
        train=TrainConfig(steps=12, global_batch=2),
        device=DeviceConfig(timeout_s=2 * PATIENCE_S),
        faults=(parse_fault("hang:rank=1,start=8,seed=1"),),
    )
    ranks = start_recorded(config, tmp_path)
    deadline = time.monotonic() + PATIENCE_S
    while not any(HANGS in name for name in stack_of(tmp_path / "run", 1)):
        assert time.monotonic() < deadline, "rank 1 never noted where it stands"
        time.sleep(0.2)
    what_is_left(ranks, tmp_path, patience_s=0.0)
    finding = diagnose(load_trace(tmp_path / "run")).findings[0]
    assert (finding.kind, finding.where["ranks"]) == ("hang", [1])
    (stack,) = (fact for fact in finding.evidence if fact.code == "hang.at_called_by")
    assert stack.values["ranks"] == [1]
    assert stack.values["function"].startswith(f"{HANGS} (host_faults.py:")


@pytest.mark.slow
def test_a_job_that_hangs_before_its_first_collective_names_who_did_not_come(tmp_path, project_dir):
    """Fails when a job that does not get going, the commonest hang, leaves no more than "no step", or names who waits."""
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [
        *(sys.executable, "-m", "meshscope", "run", "--runs", str(tmp_path), "--run-id", "a"),
        *("--", *job, str(LATE_JOB)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(project_dir / "src"), "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, **quiet) as launcher:
        deadline = time.monotonic() + PATIENCE_S
        while not (stack_of(tmp_path / "a", 0) and stack_of(tmp_path / "a", 1)):
            assert time.monotonic() < deadline, "the ranks never noted where they stand"
            time.sleep(0.2)
        time.sleep(LONG_S)
        launcher.terminate()
    (finding,) = diagnose(load_trace(tmp_path / "a")).findings
    assert (finding.kind, finding.where["ranks"]) == ("hang", [1])
    assert finding.claim.code == "attempt.before_first_step"
    assert finding.claim.values["what"].code == "hang.not_met"
    stacks = {
        tuple(fact.values["ranks"]): fact.values["function"]
        for fact in finding.evidence
        if fact.code.startswith("hang.at")
    }
    assert stacks[1,].startswith("read_for_ever (late_job.py:")
    assert stacks[0,].startswith("_new_process_group_helper")
