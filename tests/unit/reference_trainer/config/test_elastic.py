"""What follows from the size of the job."""

from __future__ import annotations

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.config.elastic import warning_of_restarts
from meshscope.reference_trainer.config.presets import load_config, preset_text


def config_of(world_size, *overrides):
    """Return the tiny run of two stages on as many ranks as there are."""
    overrides = ["layout.dp=auto", *overrides]
    return load_config(preset_text("tiny"), overrides=overrides, world_size=world_size)


@pytest.mark.parametrize(("world_size", "replicas"), [(2, 1), (4, 2)])
def test_the_ranks_decide_how_many_replicas_there_are(world_size, replicas):
    """Fails if a job that lost a node cannot go on, or trains on another batch."""
    config = config_of(world_size)
    assert config.layout.dp == replicas
    assert config.train.global_batch == 4


def test_a_batch_per_replica_follows_the_replicas():
    """Fails if the batch of a replica changes though it was given."""
    assert config_of(6, "train.replica_batch=2").train.global_batch == 6
    fixed = load_config(
        preset_text("tiny"), overrides=["layout.dp=2", "train.replica_batch=6"], world_size=4
    )
    assert fixed.train.global_batch == 12
    with pytest.raises(ConfigError, match=r"^train\.replica_batch: 9 .*Use a multiple of 2"):
        config_of(6, "train.replica_batch=3")


def test_ranks_that_make_no_whole_replica_are_refused():
    """Fails if some ranks would stand idle without a word."""
    with pytest.raises(ConfigError, match=r"layout.dp: 3 ranks are no whole .* tp x pp x cp = 2"):
        config_of(3)
    with pytest.raises(ConfigError, match=r"train.global_batch: 4 sequences do not divide"):
        config_of(12)


@pytest.mark.parametrize("value", ["many", 0])
def test_other_words_are_no_number(value):
    """Fails if a typing error is taken for a layout."""
    with pytest.raises(ConfigError):
        config_of(2, f"layout.dp={value}")
    with pytest.raises(ConfigError):
        config_of(2, "train.replica_batch=few")


def test_a_restart_that_may_not_connect_is_announced():
    """Fails if a job that torchrun cannot restart reliably starts without a word."""
    shared = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3"}
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in (warning_of_restarts(shared) or "")
    assert warning_of_restarts(shared | {"TORCHELASTIC_USE_AGENT_STORE": "False"}) is None
    assert warning_of_restarts(shared | {"TORCHELASTIC_MAX_RESTARTS": "0"}) is None
    assert warning_of_restarts({}) is None
