"""Ranks whose every operation goes through host memory."""

from __future__ import annotations

import pytest
from tests.distributed.trainer_job import mesh_losses, plain_losses

from meshscope.reference_trainer.presets import load_config, preset_text

pytestmark = pytest.mark.distributed

RUN = ("device.staging=always", "model.layers=4", "train.global_batch=8", "train.bucket_bytes=4096")


@pytest.mark.parametrize(
    "overrides",
    [
        ("layout.pp=2", "schedule.kind=zb-h1"),
        ("layout.pp=1", "layout.cp=2", "context.form=all_to_all", "data_parallel.zero=2"),
        pytest.param(("layout.pp=1", "layout.cp=2"), marks=pytest.mark.slow),
        pytest.param(
            ("layout.tp=2", "layout.pp=2", "layout.dp=2", "tensor.sequence_parallel=true"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("layout.pp=2", "layout.dp=2", "data_parallel.zero=3"), marks=pytest.mark.slow
        ),
    ],
)
def test_staged_ranks_train_the_model_of_one_process(tmp_path, overrides):
    """Fails if a copy is made too early, too late, or of the wrong tensor."""
    config = load_config(preset_text("tiny"), overrides=(*RUN, *overrides))
    assert mesh_losses(config, tmp_path) == pytest.approx(plain_losses(config), abs=1e-5)
