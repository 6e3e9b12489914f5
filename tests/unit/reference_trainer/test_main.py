"""The command line of the trainer, as a user meets it."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from meshscope.reference_trainer.__main__ import main


@pytest.fixture
def invoke(monkeypatch):
    """Run the command line in this process, as a job of one."""
    monkeypatch.delenv("RANK", raising=False)
    app = typer.Typer()
    app.command()(main)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_one_process_trains_without_a_launcher(invoke, tmp_path):
    """Fails if the first thing that a user tries needs more than Python."""
    arguments = ["--set", "layout.pp=1", "--set", "train.steps=2", "--out", str(tmp_path)]
    result = invoke(*arguments)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["step", "0"], ["step", "1"]]
    losses = json.loads((tmp_path / "losses.json").read_text())["loss"]
    assert lines[1].split()[3] == f"{losses[1]:.6f}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "demo"], "--nproc_per_node 8"),
        (["--preset", "llama3-405b"], "Add --dry-run"),
        (["--preset", "none"], "there is no preset 'none'"),
        (["--set", "model.heads=3"], "model.hidden"),
        (["--set", "layout.pp=1", "--set", "device.kind=cuda"], "device.kind"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(invoke, arguments, message, monkeypatch):
    """Fails if bad input ends in a traceback or in success."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_dry_run_prints_the_plan_and_starts_nothing(invoke, monkeypatch):
    """Fails if a plan needs the ranks that it is about."""
    monkeypatch.setattr("meshscope.reference_trainer.__main__._train", None)
    result = invoke("--preset", "gpt3-175b", "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.startswith("layout    1,024 ranks")


def test_help_names_the_presets(invoke):
    """Fails if a user cannot find out what can be run."""
    assert "demo" in invoke("--help").stdout
