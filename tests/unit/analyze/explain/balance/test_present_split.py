"""Today's split: stated by the user, by a topology file, or by Megatron's arguments."""

from dataclasses import replace

import numpy as np
import pytest
from tests.pipeline_dumps import write_dumps

from meshscope.analyze import load_trace
from meshscope.analyze.explain.balance import balance
from meshscope.analyze.explain.balance.present_split import (
    BY_FLOPS,
    MEASURED,
    layer_weights,
    weights_of_stages,
)
from meshscope.analyze.findings.measure import measure
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model.counts import layer_flops

HELD = (30, 26, 22, 20)


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    """Return a run of four stages, whose heavy head hides how layers are split."""
    folder = tmp_path_factory.mktemp("run") / "now"
    write_dumps(folder, (4, 4, 5, 3), HELD)
    return measure(load_trace(folder))


def split_of(account, **facts):
    """Return the present split of a run about which more is known."""
    trace = replace(account.trace, run={**account.trace.run, **facts})
    return balance(replace(account, trace=trace)).current.layers


@pytest.mark.parametrize(
    ("facts", "split"),
    [
        ({"memory_settings": {"layers": [4, 4, 5, 3]}}, (4, 4, 5, 3)),
        ({"training_arguments": {"decoder_last_pipeline_num_layers": 1}}, (5, 5, 5, 1)),
        (
            {
                "training_arguments": {
                    "pipeline_model_parallel_size": 4,
                    "pipeline_model_parallel_layout": "Et*4|t*4|t*5|t*3L",
                }
            },
            (4, 4, 5, 3),
        ),
        ({"training_arguments": {"num_layers": 16}}, (4, 4, 4, 4)),
    ],
)
def test_what_the_capture_states_is_the_split(account, facts, split):
    """Fails when a recorded layout has to be typed again, or costs overrule it."""
    assert split_of(account, num_layers=16, **facts) == split


def test_a_recorded_split_that_does_not_fit_is_an_error(account):
    """Fails when a wrong layout of the capture is left out silently."""
    with pytest.raises(ConfigError, match="3 counts are given for 4 stages"):
        split_of(account, num_layers=16, memory_settings={"layers": [4, 4, 8]})


def test_a_stage_with_passes_has_layers(account):
    """Fails when a split that cannot be today's is priced, with memory that no device has."""
    with pytest.raises(ConfigError, match="stage 1 has passes"):
        balance(account, (0, 0, 0, 16))


def test_what_runs_fits(account):
    """Fails when a run that fills its devices is an error, or is proposed more than they hold."""
    memory = account.memory.assign(capacity_bytes=account.memory["peak_bytes"].max())
    found = balance(replace(account, memory=memory), (4, 4, 5, 3))
    assert found.current.fits
    assert all(one.fits for one in found.proposals)


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
