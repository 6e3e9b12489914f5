"""The parts of the activations, by formula and by simulation."""

from __future__ import annotations

import pytest

from meshscope.reference_trainer.config.presets import load_config, preset_text
from meshscope.reference_trainer.planning.activation_terms import GATHERED, OTHER, activation_terms
from meshscope.reference_trainer.planning.memory_plan import memory_plan
from meshscope.reference_trainer.simulation.simulation import simulate_rank


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
