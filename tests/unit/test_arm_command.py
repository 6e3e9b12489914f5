"""The verb that records a few steps in depth: which run it takes."""

from typer.testing import CliRunner

from meshscope.cli import app
from meshscope.probe.schema.rundir import create_run


def test_a_run_is_given_by_path_or_name(tmp_path):
    """Fails when arm takes no name of a run, which attach takes."""
    run = create_run(tmp_path, "job-1", {"world_size": 1})
    ways = (["--run", str(run)], ["--run", "job-1", "--runs", str(tmp_path)])
    said = [CliRunner().invoke(app, ["arm", *way, "--disarm"]) for way in ways]
    assert all(str(run) in str(one.exception or one.output) for one in said)
    assert said[0].exit_code == said[1].exit_code
