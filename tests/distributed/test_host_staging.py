"""Ranks whose every operation goes through host memory."""

from __future__ import annotations

import json

import pytest
from tests.distributed.trainer_job import mesh_losses, plain_losses

from meshscope.reference_trainer.config.presets import load_config, preset_text
from meshscope.reference_trainer.faults.ground_truth import truth_path

pytestmark = pytest.mark.distributed

SLOW_STEP = 1
RUN = ("device.staging=always", "model.layers=4", "train.global_batch=8", "train.bucket_bytes=4096")


@pytest.mark.parametrize(
    ("axis", "overrides"),
    [
        ("pp", ("layout.pp=2", "schedule.kind=zb-h1")),
        ("cp", ("layout.pp=1", "layout.cp=2", "context.form=all_to_all", "data_parallel.zero=2")),
    ],
)
def test_staged_ranks_over_a_slow_link_train_the_model_of_one_process(tmp_path, axis, overrides):
    """Fails if a copy is made too early, or what goes through host memory escapes a slow link."""
    fault = (
        f"slow_link:rank=0,axis={axis},delay_ms=10,start={SLOW_STEP},stop={SLOW_STEP + 1},seed=1"
    )
    config = load_config(preset_text("tiny"), overrides=(*RUN, *overrides), faults=[fault])
    assert mesh_losses(config, tmp_path) == pytest.approx(plain_losses(config), abs=1e-5)
    for rank in range(2):
        lines = truth_path(tmp_path, rank).read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        held = [record for record in records if record["record"] == "fault"]
        (step,) = (r for r in records if (r["record"], r.get("step")) == ("step", SLOW_STEP))
        # A rank of two stages receives once per microbatch; an exchange has both ranks in it.
        blocks = 1 if axis == "pp" else 4 * config.model.layers
        assert len(held) == config.schedule.microbatches * blocks
        for one in held:
            assert one["step"] == SLOW_STEP
            assert one["end_ns"] - one["start_ns"] >= 10e6
            assert step["start_ns"] < one["issue_ns"] < one["end_ns"] < step["end_ns"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("layout.pp=1", "layout.cp=2"),
        ("layout.tp=2", "layout.pp=2", "layout.dp=2", "tensor.sequence_parallel=true"),
        ("layout.pp=2", "layout.dp=2", "data_parallel.zero=3"),
    ],
)
def test_staged_ranks_train_the_model_of_one_process(tmp_path, overrides):
    """Fails if a copy is made too early, too late, or of the wrong tensor."""
    config = load_config(preset_text("tiny"), overrides=(*RUN, *overrides))
    assert mesh_losses(config, tmp_path) == pytest.approx(plain_losses(config), abs=1e-5)
