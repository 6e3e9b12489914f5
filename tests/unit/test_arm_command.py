"""The verb that records a few steps in depth: which run it takes."""

import pytest
from typer.testing import CliRunner

from meshscope.analyze.read.deep_traces.steps import TraceCheck
from meshscope.cli import app
from meshscope.commands.arm import _steps
from meshscope.probe.schema.rundir import create_run


def test_a_run_is_given_by_path_or_name(tmp_path):
    """Fails when arm takes no name of a run, which attach takes."""
    run = create_run(tmp_path, "job-1", {"world_size": 1})
    ways = (["--run", str(run)], ["--run", "job-1", "--runs", str(tmp_path)])
    said = [CliRunner().invoke(app, ["arm", *way, "--disarm"]) for way in ways]
    assert all(str(run) in str(one.exception or one.output) for one in said)
    assert said[0].exit_code == said[1].exit_code


@pytest.mark.parametrize(
    ("steps", "own", "said"),
    [
        ((7, 8), (7, 8), "7, 8"),
        ((32, 33), (7, 8), "32, 33 (by the rank's own count 7, 8)"),
        ((), (), "unknown"),
    ],
)
def test_steps_are_those_that_were_asked_for(steps, own, said):
    """Fails when steps 7 and 8 are asked for, 32 and 33 come back, and nobody says that they are the same."""
    assert _steps(TraceCheck(0, steps, own, 0, 0, "")) == said
