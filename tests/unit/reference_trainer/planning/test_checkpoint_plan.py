"""The size of checkpoints that are not there yet."""

from __future__ import annotations

import pytest

from meshscope.reference_trainer.config.presets import load_config, preset_text
from meshscope.reference_trainer.planning.checkpoint_plan import checkpoint_lines, checkpoint_size


def size_of(*overrides):
    """Return the size for GPT-3 on 1,024 GPUs, TP8 x PP8 x DP16."""
    return checkpoint_size(load_config(preset_text("gpt3-175b"), overrides=overrides))


def test_a_checkpoint_has_each_weight_and_average_once():
    """Fails if replicas count in the size, or the averages of AdamW do not."""
    size = size_of("train.optimizer=adamw")
    assert size.total / 1e12 == pytest.approx(12 * 174.6e9 / 1e12, rel=2e-3)
    # Counted more than once: biases, norms and positions on tp ranks, the tied rows on two stages.
    assert sum(size.written) * 8 * 16 == pytest.approx(size.total, rel=1e-2)
    assert sum(size.written) * 8 * 16 > size.total
    assert size_of("train.optimizer=sgd").total * 3 == size.total
    assert size_of("train.optimizer=sgd", "train.momentum=0.9").total * 3 == size.total * 2


def test_an_asynchronous_save_copies_what_a_rank_holds():
    """Fails if the host memory is that of a share while every replica copies everything."""
    whole = size_of("train.optimizer=adamw", "data_parallel.zero=0")
    assert whole.staged == pytest.approx([16 * written for written in whole.written])
    sharded = size_of("train.optimizer=adamw", "data_parallel.zero=1")
    assert sharded.staged == sharded.written
    hybrid = size_of(
        "train.optimizer=adamw",
        "data_parallel.zero=3",
        "data_parallel.shard_ranks=4",
        "model.tied=false",
    )
    assert hybrid.staged == pytest.approx([4 * written for written in hybrid.written])


def test_the_plan_says_it_in_words():
    """Fails if a dry run leaves the size of checkpoints out."""
    config = load_config(preset_text("gpt3-175b"), overrides=["train.optimizer=adamw"])
    first, second = checkpoint_lines(config)
    assert first == (
        "checkpoint  2,095.4 GB: fp32 weights, exp_avg, exp_avg_sq, 12 bytes per parameter"
    )
    assert second.startswith("each rank writes 2.0 to 2.1 GB, most on pp rank 0; ")
