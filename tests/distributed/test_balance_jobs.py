"""A pipeline with a heavy head, and its repair by ``balance``: both run, at the same time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.recorded_training import start_recorded, what_is_left
from typer.testing import CliRunner

from meshscope.analyze import diagnose, load_trace
from meshscope.cli import app
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    PaceConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)

pytestmark = [pytest.mark.distributed, pytest.mark.alone]

NOW, THEN = (2, 2, 2, 2), (3, 2, 2, 1)
MICROBATCHES, STEPS = 8, 4
POINTS = 0.02


def config(split: tuple[int, ...]) -> TrainerConfig:
    """Return a job of four stages whose head costs as much as a block and a half."""
    return TrainerConfig(
        layout=ParallelLayout(pp=len(split)),
        model=ModelConfig(layers=sum(split), hidden=32, ffn=64, heads=4, vocab=64, seq_len=16),
        schedule=ScheduleConfig(kind="1f1b", microbatches=MICROBATCHES, layers_per_stage=split),
        train=TrainConfig(steps=STEPS, global_batch=MICROBATCHES),
        pace=PaceConfig(layer_ms=40.0, head_ms=60.0),
    )


def balance(run: Path, *options: str) -> dict[str, Any]:
    """Return the JSON of a balance."""
    words = ["balance", str(run), *options, "--format", "json"]
    found: dict[str, Any] = json.loads(
        CliRunner().invoke(app, words, catch_exceptions=False).stdout
    )
    return found


@pytest.mark.sampled(keep=())
def test_the_promised_gain_is_the_one_of_the_repaired_job(tmp_path):
    """Fails when a job with the proposed layers gains another share of the step than promised."""
    folders = {split: tmp_path / "-".join(map(str, split)) for split in (NOW, THEN)}
    # Side by side, so that what disturbs one disturbs the other.
    jobs = {split: start_recorded(config(split), out) for split, out in folders.items()}
    for split, ranks in jobs.items():
        assert what_is_left(ranks, folders[split]).codes == [0] * len(NOW)
    before, after = (
        diagnose(load_trace(folders[split] / "run")).step_time_ns for split in (NOW, THEN)
    )
    found = balance(folders[NOW] / "run")
    assert found["current"]["layers"] == list(NOW)
    assert found["proposals"][0]["layers"][-1] == 1
    (tried,) = balance(folders[NOW] / "run", "--try", ",".join(map(str, THEN)))["proposals"]
    gain = 1 - after / before
    assert gain > 0.1
    assert tried["gain_frac"] == pytest.approx(gain, abs=POINTS)
    assert tried["gain_low_frac"] <= gain <= tried["gain_high_frac"]
