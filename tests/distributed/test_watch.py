"""A job that trains is followed from outside, up to its end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.distributed.recorded_training import start_recorded

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    PaceConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)

pytestmark = pytest.mark.distributed


def config(steps: int) -> TrainerConfig:
    """Return a job of two replicas."""
    return TrainerConfig(
        layout=ParallelLayout(dp=2),
        model=ModelConfig(layers=2, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16),
        schedule=ScheduleConfig(kind="1f1b", microbatches=2),
        train=TrainConfig(steps=steps, global_batch=4),
        pace=PaceConfig(layer_ms=20.0),
    )


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_job_is_followed_to_its_end(tmp_path, is_killed):
    """The command would miss the steps of a living job, or how it ended."""
    run = tmp_path / "run"
    run.mkdir()
    ranks = start_recorded(config(1000 if is_killed else 12), tmp_path)
    words = [sys.executable, "-m", "meshscope", "watch", str(run), "--every", "0.3", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watch:
        seen = []
        for line in watch.stdout:
            seen.append(json.loads(line))
            if is_killed:
                ranks[1].kill()
    for rank in ranks:
        rank.kill()
        rank.join()
    assert watch.returncode == 0
    assert seen[0]["event"] == "steps"
    if is_killed:
        assert seen[-1]["event"] == "broken_off"
        assert "rank 1" in seen[-1]["text"]
    else:
        assert seen[-1]["event"] == "ended"
        assert max(event.get("last_step", -1) for event in seen) == 11
