"""Settings of data parallelism: what fits together."""

from __future__ import annotations

import math

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    MoeConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.parallel_config import DataParallelConfig, MemoryConfig
from meshscope.reference_trainer.config.presets import load_config


@pytest.mark.parametrize(
    ("build", "field", "remedy"),
    [
        (lambda: DataParallelConfig(shard_ranks=-1), "data_parallel.shard_ranks", "at least 0"),
        (lambda: DataParallelConfig(shard_ranks=2), "data_parallel.shard_ranks", "zero to 3"),
        (
            lambda: DataParallelConfig(zero=3, compression="int8"),
            "data_parallel.compression",
            "Set it to none",
        ),
        (
            lambda: TrainerConfig(
                layout=ParallelLayout(dp=4),
                train=TrainConfig(global_batch=16),
                data_parallel=DataParallelConfig(zero=3, shard_ranks=3),
            ),
            "data_parallel.shard_ranks",
            "divisor of layout.dp",
        ),
        (
            lambda: TrainerConfig(
                model=ModelConfig(tied=True), data_parallel=DataParallelConfig(zero=3)
            ),
            "data_parallel.zero",
            "model.tied to false",
        ),
        (
            lambda: TrainerConfig(
                layout=ParallelLayout(dp=2, ep=2),
                moe=MoeConfig(experts=4),
                data_parallel=DataParallelConfig(zero=3),
            ),
            "data_parallel.zero",
            "2 or less, or layout.ep to 1",
        ),
        (lambda: MemoryConfig(gradients="bf16"), "memory.gradients", "precision to bf16"),
        (
            lambda: TrainerConfig(
                layout=ParallelLayout(dp=2),
                memory=MemoryConfig(precision="bf16", gradients="bf16"),
                data_parallel=DataParallelConfig(zero=3),
            ),
            "memory.gradients",
            "zero to 2 or less",
        ),
        (
            lambda: TrainerConfig(
                layout=ParallelLayout(dp=2),
                memory=MemoryConfig(precision="bf16", gradients="bf16"),
                data_parallel=DataParallelConfig(compression="int8"),
            ),
            "data_parallel.compression",
            "memory.gradients to fp32",
        ),
        (lambda: TrainConfig(max_grad_norm=-1.0), "train.max_grad_norm", "at least 0"),
    ],
)
def test_what_does_not_fit_names_the_field_and_the_remedy(build, field, remedy):
    """Fails if a setting without effect is accepted, or the message does not help."""
    with pytest.raises(ConfigError, match=f"^{field}: .*{remedy}"):
        build()


def test_settings_are_read_from_the_command_line():
    """Fails if the sections cannot be set as documented."""
    overrides = ["data_parallel.zero=2", "memory.recompute=full", "train.max_grad_norm=inf"]
    config = load_config("", overrides=overrides)
    assert (config.data_parallel.zero, config.memory.recompute) == (2, "full")
    assert math.isinf(config.train.max_grad_norm)


def test_a_bucket_holds_25_mib_by_default():
    """Fails if the default differs from what the documentation and other trainers use."""
    assert TrainConfig().bucket_bytes == 25 * 2**20
