"""``--steps`` as people type it."""

import json

import pytest
from typer.testing import CliRunner

from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.cli import app
from meshscope.probe.schema.layout import ParallelLayout


def meshscope(*arguments):
    """Return the result of a command line."""
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run of sixteen steps in which rank 1 is slow from step 8 on."""
    job = SyntheticJob(
        layout=ParallelLayout(dp=4),
        steps=16,
        jitter_cv=0.01,
        faults=(parse_fault("slow_rank:rank=1,factor=1.5,first_step=8"),),
    )
    trace, _ = generate(job)
    return write_run(job, trace, None, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    "verb",
    [
        ("diagnose",),
        ("stragglers",),
        ("critical-path",),
        ("whatif", "--fix", "stragglers"),
        ("collectives",),
    ],
    ids=lambda verb: verb[0],
)
def test_every_verb_of_a_capture_takes_some_of_its_steps(run, verb):
    """Users would see another part of the run in each command."""
    result = meshscope(*verb, run, "--steps", "8:15")
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip().splitlines()[-1].endswith("--steps 8:15")
    form = json.loads(meshscope(*verb, run, "--steps", "8:15", "--format", "json").stdout)
    assert any("nly steps 8:15 were asked for" in limit for limit in form["limits"])


def test_a_gate_can_begin_after_the_warm_up(run, tmp_path):
    """CI would judge steps that everybody leaves out."""
    budget = tmp_path / "gate.toml"
    budget.write_text("[budget]\nstraggler_slowdown = { max = 1.05 }\n", encoding="utf-8")
    codes = {
        steps: meshscope("gate", run, "--budget", budget, "--steps", steps).exit_code
        for steps in (":7", "8:")
    }
    assert codes == {":7": 0, "8:": 1}


def test_two_parts_of_one_run_are_compared(run):
    """What a run lost from a step on would have to be worked out by hand."""
    result = meshscope("compare", run, run, "--steps-before", ":7", "--steps-after", "8:")
    assert result.exit_code == 0, result.output
    assert "new: Rank 1 is" in result.stdout


@pytest.mark.parametrize("steps", ["7", "9:8", "500:"])
def test_a_slip_is_reported_in_a_line(run, steps):
    """Users would see a traceback, or a result of other steps."""
    result = meshscope("diagnose", run, "--steps", steps)
    assert result.exit_code != 0
    assert "step" in str(result.exception or result.output)
