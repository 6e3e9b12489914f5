"""What a user reads of a simulated rank."""

from __future__ import annotations

from meshscope.reference_trainer.config.presets import load_config, preset_text
from meshscope.reference_trainer.simulation.simulation import simulate_rank
from meshscope.reference_trainer.simulation.text import simulation_text


def text_of(rank, *overrides):
    """Return the text of a simulated rank by its lines."""
    config = load_config(preset_text("tiny"), overrides=overrides)
    return simulation_text(config, simulate_rank(config, rank)).splitlines()


def fields(lines, first):
    """Return the cells of the one line that starts with a word."""
    (line,) = [line for line in lines if line.split()[:1] == [first]]
    return line.split()


def test_a_rank_is_reported_with_its_place_order_and_peaks():
    """Fails if memory, order or collectives of the rank are missing or not its own."""
    lines = text_of(1, "schedule.microbatches=4", "layout.dp=2", "train.global_batch=8")
    assert lines[0].startswith("rank      1 of 4: pp 0, dp 1, cp 0, tp 0; stage 0, ")
    assert "1f1b, 8 passes: 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3" in "\n".join(lines)
    assert "expected bubble 25.00% of ideal time; equal stages: (p-1)/m" in "\n".join(lines)
    assert fields(lines, "all_reduce")[1:3] == ["dp", "1"]
    assert [line.split()[0] for line in lines if line.startswith(("weights", "pipe", "upd"))] == [
        "weights",
        "pipeline",
        "update",
        "weights",
    ]


def test_differences_to_the_formulas_are_given_with_their_reason():
    """Fails if a reader cannot tell why the trainer holds something else than the plan."""
    lines = text_of(0, "data_parallel.zero=1", "layout.dp=2", "train.optimizer=adamw")
    (weights,) = [line for line in lines if line.endswith("  fp32: 4 bytes each")]
    assert float(weights.split()[1]) == 2 * float(weights.split()[2])
    gradients = " ".join(fields(lines, "gradients"))
    assert gradients.endswith("added up in fp32: 4 bytes each")
    optimizer = " ".join(fields(lines, "optimizer"))
    assert optimizer.endswith("the weights are the masters: 8 bytes each; both: 1 / 2 per GPU")
    assert any(line.startswith("This run computes in fp32") for line in lines)


def test_a_shortened_run_says_so():
    """Fails if a step of a few microbatches passes for the whole one."""
    lines = text_of(0, "schedule.microbatches=64", "train.global_batch=64")
    assert any("ran 4 of 64 microbatches" in line for line in lines)
    (order,) = [line for line in lines if line.startswith("order")]
    assert order.endswith("0B63")
    assert "…" in order
