"""The verb ``stragglers`` as people and programs meet it."""

import json

import pytest
from tests.ndtimeline_jobs import JobShape, write_job
from typer.testing import CliRunner

from meshscope.cli import app
from meshscope.probe.schema.errors import TraceFormatError


@pytest.fixture
def job(tmp_path):
    """Return the trace of a job of four workers."""
    folder = tmp_path / "job"
    folder.mkdir()
    return write_job(folder, JobShape(pp=2, dp=2, noise=0.15))


def run(*arguments):
    """Return the result of a command line."""
    return CliRunner().invoke(app, ["stragglers", *map(str, arguments)])


def test_compat_gives_the_three_published_forms(job):
    """Programs that read the published files could not read ours."""
    form = json.loads(run(job, "--compat", "--format", "json").stdout)
    assert {"result", "ms", "mw"} <= form.keys()
    assert form["result"]["job_meta"]["trial_name"] == "J"
    assert form["ms"]["Ms"] == form["ms"]["rem"]
    assert form["mw"]["Mw"] == form["mw"]["rem"]


def test_compat_ends_with_the_next_command(job):
    """Readers would not know how to go on."""
    lines = run(job, "--compat").stdout.rstrip().splitlines()
    assert lines[0] == "Published straggler metrics of J"
    assert lines[-1].startswith("Next: meshscope stragglers")


def test_every_capture_gets_ranks_steps_and_stages(tmp_path, job):
    """Without the published format there would be no answer."""
    runs = ("--runs", tmp_path / "runs")
    form = json.loads(run(job, *runs, "--format", "json").stdout)
    assert [row["rank"] for row in sorted(form["ranks"], key=lambda row: row["rank"])] == [
        0,
        1,
        2,
        3,
    ]
    assert len(form["steps"]) == len(form["stages"]) == 2
    assert "Ranks, by what repairing returns" in run(job, *runs).stdout


def test_compat_of_another_capture_says_what_it_needs(tmp_path):
    """Users would see a traceback."""
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    result = run(trace, "--compat")
    assert isinstance(result.exception, TraceFormatError)
    assert "NDTimeline" in str(result.exception)
