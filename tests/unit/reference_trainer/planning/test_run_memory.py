"""What a rank of this run holds by formula, beside what its simulation finds."""

from __future__ import annotations

import pytest

from meshscope.reference_trainer.config.presets import load_config, preset_text
from meshscope.reference_trainer.planning.dry_run import dry_run_text
from meshscope.reference_trainer.planning.memory_plan import memory_plan
from meshscope.reference_trainer.planning.run_memory import (
    GATHERED,
    OTHER,
    activation_terms,
    run_memory,
)
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


def config_of(*overrides):
    """Return a bf16 run of a model wide enough that small tables do not matter."""
    sizes = ("model.hidden=256", "model.ffn=1024", "model.seq_len=64", "model.layers=8")
    overrides = (*sizes, "memory.precision=bf16", "layout.tp=2", *overrides)
    return load_config(preset_text("tiny"), overrides=overrides)


def terms_of(config, rank):
    """Return the terms of a simulated rank."""
    found = simulate_rank(config, rank)
    by_origin = {(o.operator, o.shape): size for o, (_, size) in found.activations.items()}
    plan = memory_plan(config)[found.position]
    return activation_terms(config, plan, by_origin), found, plan


@pytest.mark.parametrize(
    ("setting", "planned"),
    [
        ("memory.recompute=none", "kept"),
        ("tensor.sequence_parallel=true", "sequence_parallel"),
        ("memory.recompute=full", "recomputed"),
    ],
)
def test_the_terms_are_those_of_the_plan(setting, planned):
    """Fails if the parts by formula do not sum to what the dry run prints."""
    config = config_of(setting)
    for plan in memory_plan(config):
        total = sum(term.planned_bytes for term in activation_terms(config, plan, {}))
        assert total == pytest.approx(getattr(plan.activations, planned))


def test_every_byte_of_a_dense_block_is_explained():
    """Fails if the trainer keeps something that neither formula nor reason names."""
    terms, found, _ = terms_of(config_of(), 3)
    assert sum(term.found_bytes for term in terms) == found.activations_bytes
    by_name = {term.name: term for term in terms}
    assert by_name[OTHER].found_bytes < 0.01 * found.activations_bytes
    for name in ("first linear layers", "GELU"):
        assert by_name[name].found_bytes == by_name[name].planned_bytes


def test_gathered_inputs_are_what_sequence_parallelism_keeps_beyond_the_paper():
    """Fails if the largest difference to the formula is not named."""
    terms, found, plan = terms_of(config_of("tensor.sequence_parallel=true"), 3)
    by_name = {term.name: term for term in terms}
    beyond = found.activations_bytes - plan.activations.sequence_parallel
    # Two inputs of 2 bytes, whole, for norms that keep their halves.
    assert by_name[GATHERED].found_bytes > 0
    assert by_name[GATHERED].planned_bytes == 0
    assert beyond < by_name[GATHERED].found_bytes
