"""A job that stands still, of real processes: who did not arrive, and what it does instead."""

import time

import pytest
from tests.distributed.recorded_training import start_recorded, what_is_left

from meshscope.analyze.diagnosis import diagnose
from meshscope.analyze.opening.load import load_trace
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import MANIFEST_NAME, STANDSTILL_KEY, rank_directory, read_json
from meshscope.reference_trainer.config import (
    DeviceConfig,
    ModelConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.fault_plan import parse_fault

pytestmark = pytest.mark.distributed

PATIENCE_S = 90
HANGS = "stand_still"
"""The function of the trainer in which the rank stands."""


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
    (told,) = (line for line in finding.evidence if " stood in " in line)
    assert told.startswith(f"rank 1 stood in {HANGS} (host_faults.py:")
    assert "called by" in told
