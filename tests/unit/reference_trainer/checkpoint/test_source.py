"""Which checkpoints a run can go on from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.checkpoint.folder import Manifest
from meshscope.reference_trainer.checkpoint.source import (
    changed_settings,
    check_fit,
    saved_settings,
)
from meshscope.reference_trainer.config.config import (
    DataParallelConfig,
    MemoryConfig,
    ModelConfig,
    MoeConfig,
    TrainConfig,
    TrainerConfig,
)

SAVED = TrainerConfig()


def manifest_of(config):
    """Return the manifest of a checkpoint of a run, as it comes back from JSON."""
    settings = json.loads(json.dumps(saved_settings(config)))
    return Manifest(step=4, config=settings, metadata_sha256="", files={})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ModelConfig(hidden=128)}, "model.hidden: 128 here, and 64 in the checkpoint"),
        ({"model": ModelConfig(layers=8)}, "model.layers"),
        ({"model": ModelConfig(heads=2)}, "model.heads"),
        ({"model": ModelConfig(tied=True)}, "model.tied: True here, and False"),
        ({"moe": MoeConfig(experts=4)}, "moe.experts: 4 here, and 0"),
        ({"train": TrainConfig(optimizer="adamw")}, "train.optimizer: needs exp_avg, exp_avg_sq"),
        ({"train": TrainConfig(momentum=0.5)}, "train.momentum: needs momentum_buffer"),
    ],
)
def test_another_model_is_refused_with_field_and_remedy(change, message):
    """Fails if tensors that do not fit are found only while they are loaded."""
    with pytest.raises(ConfigError) as caught:
        check_fit(manifest_of(SAVED), replace(SAVED, **change))
    assert str(caught.value).startswith(message)
    assert "checkpoint.resume to none" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"layout": ParallelLayout(tp=2, pp=2, dp=2)},
        {"data_parallel": DataParallelConfig(zero=2)},
        {"memory": MemoryConfig(precision="bf16", recompute="full")},
        {"train": TrainConfig(steps=99, seed=3, learning_rate=1.0, max_grad_norm=1.0)},
    ],
)
def test_any_other_setting_may_change(change):
    """Fails if a run cannot go on with another mesh, memory or length."""
    check_fit(manifest_of(SAVED), replace(SAVED, **change))


def test_averages_that_are_not_needed_are_left():
    """Fails if going back to plain SGD is refused."""
    adamw = replace(SAVED, train=TrainConfig(optimizer="adamw"))
    check_fit(manifest_of(adamw), SAVED)


def test_what_changes_the_training_is_said():
    """Fails if another seed or batch passes without a word, or a longer run is called changed."""
    now = replace(
        SAVED,
        layout=ParallelLayout(dp=2),
        train=TrainConfig(steps=99, seed=3, global_batch=16),
        data_parallel=DataParallelConfig(zero=1),
    )
    assert list(changed_settings(manifest_of(SAVED), now)) == [
        "  layout.dp is 2, and was 1",
        "  train.global_batch is 16, and was 8",
        "  train.seed is 3, and was 1",
    ]
