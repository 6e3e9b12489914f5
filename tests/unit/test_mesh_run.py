"""What a test can assert of recorded runs, on captures with known answers."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.findings.measure import measure
from meshscope.analyze.gate.baseline_file import to_json
from meshscope.mesh_job import LaunchOptions, launch
from meshscope.mesh_run import RecordedRuns
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout


def recorded(lines=None, **job):
    """Return the runs of a job of two stages and two tensor-parallel ranks each."""
    trace = capture(
        Job(layout=ParallelLayout(tp=2, pp=2), steps=8, **job), uniform(10 * MS, 20 * MS)
    )
    runs = RecordedRuns((Path("runs/one"),), note=[].append if lines is None else lines.append)
    runs.__dict__["accounts"] = (measure(trace),)
    return runs


@pytest.fixture(scope="module")
def runs():
    """Return runs with 2 segments, so 16 all-reduces of each rank: 4 microbatches, both directions."""
    return recorded()


def test_counts_of_each_rank_are_exact(runs):
    """An added or lost all-reduce would pass."""
    runs.assert_collectives(tp={"all_reduce": 16})
    with pytest.raises(AssertionError, match="tp all_reduce: 16 per step on rank 0, 1, 2, 3"):
        runs.assert_collectives(tp={"all_reduce": 15})


def test_a_kind_that_is_not_named_must_not_occur(runs):
    """An all-reduce would be exchanged for something that costs more, and nobody would see it."""
    with pytest.raises(AssertionError, match=r"all_gather: 0 per step .* expected 16") as failed:
        runs.assert_collectives(tp={"all_gather": 16})
    assert "all_reduce: 16 per step on rank 0, 1, 2, 3, expected 0" in str(failed.value)


def test_budgets_hold_or_fail_with_the_figure(runs):
    """A broken budget would pass, or fail without a number."""
    measured = runs.diagnoses[0].metrics["bubble_frac"]
    runs.assert_budget(bubble_frac=measured + 0.01, step_time_ns={"min": 1})
    with pytest.raises(AssertionError, match=rf"bubble_frac = {measured:.6g} \(must be at most"):
        runs.assert_budget(bubble_frac=measured - 0.01)


def test_an_unknown_figure_never_passes(runs):
    """A budget on MFU would hold for ever where no peak is known; a number is the least MFU."""
    with pytest.raises(AssertionError, match=r"UNKNOWN  mfu \(must be at least 0.4\)"):
        runs.assert_budget(mfu=0.4)


def test_slips_are_explained(runs):
    """A misspelt axis would be counted as 0, a misspelt metric be forgotten."""
    with pytest.raises(ConfigError, match="Did you mean all_reduce"):
        runs.assert_collectives(tp={"allreduce": 16})
    with pytest.raises(ConfigError, match="tpp is not a known axis"):
        runs.assert_collectives(tpp={"all_reduce": 16})
    with pytest.raises(ConfigError, match="unknown metric"):
        runs.assert_budget(bubble=0.1)


def test_more_operations_than_the_base_fail(runs, tmp_path):
    """The assertion would say less than the gate of the command line."""
    lines: list[str] = []
    recorded(lines).assert_no_slower_than(runs)
    assert lines[0].startswith("PASS")
    file = tmp_path / "base.json"
    file.write_text(to_json(runs.baseline()), encoding="utf-8")
    with pytest.raises(AssertionError, match="64 → 96: 32 more per step"):
        recorded(segments=3).assert_no_slower_than(file)


def test_a_failed_job_shows_its_output(tmp_path, monkeypatch):
    """A test would fail without saying what the script said."""
    options = LaunchOptions(runs_dir=tmp_path, ranks=1, timeout_s=100)
    monkeypatch.setattr(sys, "executable", "/bin/ls")
    with pytest.raises(AssertionError, match=r"ended with exit code \d+:\n.*ls:"):
        launch(["train.py"], options, "a test [1]")
    with pytest.raises(ConfigError, match="no script"):
        launch([], options, "x")


def test_a_job_that_hangs_is_ended(tmp_path, monkeypatch):
    """A hanging job would hang the tests, and outlive them."""
    script = tmp_path / "hang"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\necho begun\nsleep 1000\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    options = LaunchOptions(runs_dir=tmp_path / "runs", ranks=1, timeout_s=2)
    with pytest.raises(AssertionError, match="still ran after 2 s:\nbegun"):
        launch(["train.py"], options, "hangs")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_the_plugin_is_declared_and_light(project_dir):
    """Pytest would not find the plugin, or every test session would wait for heavy imports."""
    project = tomllib.loads((project_dir / "pyproject.toml").read_text(encoding="utf-8"))
    (module,) = project["project"]["entry-points"]["pytest11"].values()
    heavy = "{'torch', 'numpy', 'pandas', 'pyarrow', 'typer', 'msgspec'}"
    code = f"import sys, {module}; print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
