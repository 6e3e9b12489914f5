"""Splits that do not divide the model are refused with the field and a remedy."""

from __future__ import annotations

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import ModelConfig, ScheduleConfig, TrainerConfig
from meshscope.reference_trainer.config.parallel_config import (
    ContextConfig,
    MoeConfig,
    TensorConfig,
)


@pytest.mark.parametrize(
    ("settings", "field", "remedy"),
    [
        ({"experts": -1}, "moe.experts", "at least 0"),
        ({"experts": 2, "experts_per_token": 3}, "moe.experts_per_token", "at most as many"),
        ({"experts_per_token": 0}, "moe.experts_per_token", "at most as many"),
        ({"capacity_factor": -0.5}, "moe.capacity_factor", "at least 0"),
        ({"balance_weight": -1.0}, "moe.balance_weight", "at least 0"),
    ],
)
def test_wrong_experts_are_named(settings, field, remedy):
    """Fails if a router would be built that cannot route."""
    with pytest.raises(ConfigError, match=f"^{field}: .*{remedy}"):
        MoeConfig(**settings)


@pytest.mark.parametrize(
    ("layout", "sections", "field", "message"),
    [
        ({"tp": 4}, {"model": ModelConfig(vocab=250)}, "model.vocab", "layout.tp = 4"),
        ({"cp": 2}, {"model": ModelConfig(seq_len=30)}, "model.seq_len", "2 x layout.cp = 4"),
        (
            {"cp": 8},
            {"context": ContextConfig(form="all_to_all")},
            "model.heads",
            "layout.tp x layout.cp = 8",
        ),
        ({}, {"tensor": TensorConfig(sequence_parallel=True)}, "tensor.sequence_parallel", "one"),
        (
            {"tp": 4},
            {"tensor": TensorConfig(sequence_parallel=True), "model": ModelConfig(seq_len=30)},
            "model.seq_len",
            "layout.cp x layout.tp = 4",
        ),
        ({"dp": 2, "ep": 2}, {}, "layout.ep", "Set moe.experts"),
        ({"dp": 2, "ep": 4}, {"moe": MoeConfig(experts=4)}, "layout.ep", "choose a divisor"),
        ({"dp": 2, "ep": 2}, {"moe": MoeConfig(experts=3)}, "moe.experts", "layout.ep = 2"),
    ],
)
def test_a_split_that_leaves_a_rest_is_refused(layout, sections, field, message):
    """Fails if a run starts in which ranks would hold unequal parts."""
    sections = {"schedule": ScheduleConfig(microbatches=1), **sections}
    with pytest.raises(ConfigError, match=f"^{field}: .*{message}"):
        TrainerConfig(layout=ParallelLayout(**layout), **sections)


def test_sequences_need_no_zigzag_without_a_ring():
    """Fails if a sequence is refused that the all-to-all form can split."""
    model = ModelConfig(seq_len=30)
    context = ContextConfig(form="all_to_all")
    config = TrainerConfig(layout=ParallelLayout(cp=2), model=model, context=context)
    assert config.layout.cp == 2


def test_a_dense_token_passes_one_mlp():
    """Fails if FLOPs are counted for experts that are not there."""
    assert MoeConfig().chosen == 1
    assert MoeConfig(experts=8, experts_per_token=2).chosen == 2
