"""`meshscope balance`: proposals against the simulated run that follows them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.cli import app
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

MS = 1_000_000


def job_of(layers):
    """Return a job of four stages with a heavy output head."""
    return SyntheticJob(
        layout=ParallelLayout(pp=4),
        layers=layers,
        steps=4,
        microbatches=16,
        jitter_cv=0.01,
        costs=Costs(head_ns=8 * MS),
    )


def written(layers, folder):
    """Return the folder of a synthetic run."""
    job = job_of(layers)
    return str(write_run(job, generate(job)[0], None, folder))


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    """Return a run with eight layers on each stage."""
    return written((8, 8, 8, 8), tmp_path_factory.mktemp("runs"))


def balance(path, *options):
    """Return the JSON of a balance."""
    words = ["balance", path, *options, "--format", "json"]
    return json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)


def test_a_proposal_gains_what_a_run_with_it_gains(run_path, tmp_path):
    """Fails if following the best proposal returns another gain than promised, by two points."""
    found = balance(run_path)
    best = found["proposals"][0]
    assert found["current"]["layers"] == [8, 8, 8, 8]
    after = diagnose(load_trace(written(tuple(best["layers"]), tmp_path))).step_time_ns
    gain = 1 - after / found["current"]["step_time_ns"]
    assert best["gain_frac"] == pytest.approx(gain, abs=0.02)
    assert best["gain_low_frac"] <= gain <= best["gain_high_frac"]
    assert gain > 0.05


def test_a_split_by_hand_is_the_only_proposal(run_path):
    """Fails if --try prices other splits, or other than whatif does."""
    found = balance(run_path, "--layers", "8,8,8,8", "--try", "9,9,8,6")
    assert [one["layers"] for one in found["proposals"]] == [[9, 9, 8, 6]]
    words = ["whatif", run_path, "--set", "layers=8,8,8,8->9,9,8,6", "--format", "json"]
    other = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert found["proposals"][0]["step_time_ns"] == pytest.approx(
        other["predicted_step_time_ns"], rel=1e-9
    )


def test_json_has_the_keys_that_programs_rely_on(run_path):
    """Fails if a key of the contract is missing."""
    found = balance(run_path)
    assert {"layers", "step_time_ns", "memory_bytes"} <= set(found["current"])
    keys = {"layers", "step_time_ns", "gain_frac", "gain_low_frac", "gain_high_frac"}
    for one in found["proposals"]:
        assert keys | {"memory_bytes", "settings"} <= set(one)
        assert set(one["settings"]) == {"megatron", "torchtitan", "deepspeed", "meshscope"}
        assert one["gain_low_frac"] <= one["gain_frac"] <= one["gain_high_frac"]


def test_a_balanced_run_has_no_proposal(tmp_path):
    """Fails if noise is sold as a gain."""
    job = SyntheticJob(
        layout=ParallelLayout(pp=4), layers=(8, 8, 8, 8), steps=4, microbatches=16, jitter_cv=0.02
    )
    found = balance(str(write_run(job, generate(job)[0], None, tmp_path)))
    assert found["proposals"] == []
    assert any("noise" in text for text in found["limits"])


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--layers", "8,8"), "--layers"),
        (("--try", "8,8,8,9"), "--try"),
        (("--try", "16,0,8,8"), "--try"),
        (("--layers", "a,b"), "--layers"),
        (("--memory", "much"), "--memory"),
    ],
)
def test_wrong_options_are_refused(run_path, options, where):
    """Fails if a split that does not fit is priced."""
    with pytest.raises(ConfigError) as error:
        balance(run_path, *options)
    assert error.value.where == where
    assert error.value.remedy
