"""Costs of dense layers and of layers with experts."""

import numpy as np
import pytest

from meshscope.analyze.explain.balance.layer_kinds import (
    BY_FLOPS,
    MEASURED,
    layer_weights,
    weights_of_stages,
)
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model.counts import layer_flops

SIZES = {
    "num_layers": 16,
    "hidden_size": 512,
    "num_heads": 8,
    "vocab_size": 1000,
    "seq_len": 128,
    "experts": 8,
    "experts_per_token": 2,
    "expert_ffn_size": 1024,
    "ffn_size": 2048,
}


def test_stages_with_other_mixes_tell_the_kinds_apart():
    """Fails when a dense layer is priced as one with experts although the run shows better."""
    model = ModelDescription(**SIZES, dense_layers=(0, 1, 2, 3, 4, 7))
    now = (3, 3, 3, 3, 4)
    true = np.array([4.0 if layer in model.dense_layers else 10.0 for layer in range(16)])
    cost = weights_of_stages(true, now) + np.array([5.0, 0, 0, 0, 20.0])
    weights, how = layer_weights(model, cost, now)
    assert how == MEASURED
    assert weights == pytest.approx(true / 10.0)


def test_dense_layers_beside_the_embedding_count_by_flops():
    """Fails when the embedding's time is taken for that of the dense layers beside it."""
    model = ModelDescription(**SIZES, dense_layers=(0, 1))
    weights, how = layer_weights(model, np.array([60.0, 40, 40, 70]), (4, 4, 4, 4))
    assert how == BY_FLOPS
    assert weights[0] == pytest.approx(layer_flops(model, 0) / layer_flops(model, 5))
    assert weights[2:] == pytest.approx(1.0)


def test_layers_that_are_alike_need_no_model():
    """Fails when a run without a model cannot be balanced, or equal layers differ."""
    for model in (None, ModelDescription(**SIZES), ModelDescription(**SIZES, dense_layers=())):
        weights, how = layer_weights(model, np.full(4, 40.0), (4, 4, 4, 4))
        assert how is None
        assert (weights == 1.0).all()
