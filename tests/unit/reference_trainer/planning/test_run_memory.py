"""What a rank of this run holds by formula, beside what its simulation finds."""

from __future__ import annotations

import pytest

from meshscope.reference_trainer.config.presets import load_config
from meshscope.reference_trainer.planning.dry_run import dry_run_text
from meshscope.reference_trainer.planning.memory_plan import memory_plan
from meshscope.reference_trainer.planning.run_memory import run_memory
from meshscope.reference_trainer.simulation.simulation import simulate_rank

BASE = """
layout = { tp = 2, pp = 2, dp = 4 }
model = { layers = 4, hidden = 64, ffn = 256, heads = 4, vocab = 512, seq_len = 32 }
schedule = { microbatches = 4 }
train = { global_batch = 16 }
"""


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "memory.precision=bf16",
        "train.optimizer=adamw",
        "memory.precision=bf16 train.optimizer=adamw data_parallel.zero=1",
        "train.momentum=0.9 data_parallel.zero=1",
        "memory.precision=bf16 memory.gradients=bf16 train.optimizer=adamw data_parallel.zero=1",
        "memory.precision=bf16 memory.gradients=bf16 data_parallel.zero=2",
        "memory.precision=bf16 train.optimizer=adamw data_parallel.zero=2",
        "memory.precision=bf16 train.optimizer=adamw data_parallel.zero=3",
        "train.optimizer=adamw data_parallel.zero=3 data_parallel.shard_ranks=2",
    ],
)
def test_what_is_kept_between_steps_is_what_the_simulation_keeps(settings):
    """Fails if the plan of a run leaves out its precision, optimizer or ZeRO stage."""
    config = load_config(BASE, overrides=settings.split())
    planned, held = run_memory(config, memory_plan(config)[0]), simulate_rank(config, 0).held
    # Padding of buckets, and the counters of AdamW.
    assert planned.weights == pytest.approx(held.weights_bytes, rel=0.01)
    assert planned.gradients == pytest.approx(held.gradients_bytes, rel=0.01)
    optimizer = held.masters_bytes + held.optimizer_bytes
    assert planned.optimizer == pytest.approx(optimizer, rel=0.01)


def test_activations_follow_precision_recomputation_and_sequence_parallelism():
    """Fails if a setting that changes what forwards keep changes nothing in the plan."""

    def activations(settings):
        config = load_config(BASE, overrides=settings.split())
        return run_memory(config, memory_plan(config)[0]).activations

    fp32 = activations("")
    assert activations("memory.precision=bf16") == fp32 / 2
    order = ("memory.recompute=full", "memory.recompute=selective", "tensor.sequence_parallel=true")
    sizes = [activations(settings) for settings in order]
    assert sizes == sorted(sizes)
    assert sizes[-1] < fp32


def test_a_dry_run_names_what_the_run_has():
    """Fails if the plan of a small fp32 run only tells of bf16 and Adam."""
    text = dry_run_text(load_config(BASE, overrides=["data_parallel.zero=3"]))
    assert "this run  GB per GPU: fp32, sgd, ZeRO-3, recompute none" in text
    assert "ZeRO-3 makes weights and gradients whole" in text
    split = ["schedule.kind=zb-h1", "memory.recompute=full"]
    assert "two halves repeats is held" in dry_run_text(load_config(BASE, overrides=split))
