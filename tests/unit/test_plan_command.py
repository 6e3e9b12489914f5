"""`meshscope plan` from the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from meshscope.cli import app
from meshscope.probe.schema.errors import ConfigError

STAGE_KEYS = {
    "stage",
    "layers",
    "parameters_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "logits_bytes",
    "buffers_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "in_flight",
}
MODEL = """
[model]
num_layers = 8
hidden_size = 512
num_heads = 8
vocab_size = 32000
seq_len = 1024
gated = true
"""


@pytest.fixture
def model(tmp_path):
    """Return the path of a small model."""
    path = tmp_path / "model.toml"
    path.write_text(MODEL, encoding="utf-8")
    return str(path)


def run(*words):
    """Run the command and return its result."""
    return CliRunner().invoke(app, ["plan", *words], catch_exceptions=False)


def test_json_has_the_keys_that_programs_rely_on(model):
    """Fails if a key of the contract is missing."""
    found = json.loads(run(model, "--pp", "2", "--tp", "2", "--dp", "4", "--format", "json").stdout)
    keys = {"parameters", "active_parameters", "flops_per_token", "stages", "bubble_frac"}
    assert keys | {"communication", "limits"} <= set(found)
    assert [stage["stage"] for stage in found["stages"]] == [0, 1]
    for stage in found["stages"]:
        assert set(stage) >= STAGE_KEYS
        assert stage["allocated_bytes"] < stage["reserved_bytes"] < stage["reserved_high_bytes"]
    for row in found["communication"]:
        assert {"axis", "kind", "count_per_step", "bytes_per_step"} <= set(row)


def test_explain_names_formula_and_source_of_every_term(model):
    """Fails if a term of a stage is not explained."""
    found = json.loads(run(model, "--explain", "--format", "json").stdout)
    stage = found["stages"][0]
    assert sum(term["bytes"] for term in stage["terms"]) == pytest.approx(
        stage["allocated_bytes"], abs=len(stage["terms"])
    )
    assert all(term["formula"] and term["source"] for term in stage["terms"])


def test_text_ends_with_the_next_command(model):
    """Fails if the reader is left without the next command."""
    lines = run(model, "--memory", "80GB").stdout.rstrip().splitlines()
    assert lines[-1].startswith("Next: meshscope plan")
    assert any("fits" in line for line in lines)


def test_a_cap_that_nothing_meets_is_an_error(model):
    """Fails if an impossible cap is answered with a plan."""
    with pytest.raises(ConfigError, match="least"):
        run(model, "--memory", "1MB")
