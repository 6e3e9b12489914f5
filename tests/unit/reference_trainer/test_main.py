"""The command line of the trainer, as a user meets it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from meshscope.reference_trainer.__main__ import app


@pytest.fixture
def invoke(monkeypatch):
    """Run the command line in this process, as a job of one."""
    monkeypatch.delenv("RANK", raising=False)
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
        (["--dry-run", "--set", "model.layers=5000000"], "Set it to at most 10000"),
        (["--dry-run", "--set", "layout.dp=100000000"], "layout: 200000000 is out of range"),
        (["--dry-run", "--set", "schedule.microbatches=100000"], "Set it to 16384 or less"),
        (["--simulate-rank", "0,two"], "Write for example --simulate-rank 0,511"),
        (["--simulate-rank", "0,2"], "rank 2 is outside 0..1"),
        (["--set", "layout.pp=1", "--set", "device.kind=cuda"], "device.kind"),
        (["--set", "layout.pp=1", "--out", "/dev/null/out"], "--out: /dev/null/out"),
        (["--set", "layout.pp=1", "--set", "memory.account=true"], "Add --out FOLDER"),
        (
            [
                *("--set", "layout.pp=1", "--set", "model.vocab=256"),
                *("--set", "data.text=/none", "--set", "data.num_workers=1"),
            ],
            "error: data.text: /none cannot be read",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(invoke, arguments, message, monkeypatch):
    """Fails if bad input ends in a traceback or in success."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: 'two' is not a number. Start the ranks with torchrun"),
        ({"RANK": "0"}, "WORLD_SIZE: is not set in this process. Start the ranks with torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "-1"}, "LOCAL_RANK: '-1' is not a number"),
        ({"RANK": "x", "WORLD_SIZE": "1"}, "RANK: 'x' is not a number"),
        ({"RANK": "5", "WORLD_SIZE": "1"}, "RANK: 5 is outside 0..0. Start the ranks with"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "MASTER_ADDR: is not set in this process. Start"),
        (
            {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "::1", "MASTER_PORT": "abc"},
            "MASTER_PORT: 'abc' is not a number",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "::1", "MASTER_PORT": "99999"},
            "MASTER_PORT: 99999 is out of range. Set it to at most 65535",
        ),
    ],
)
def test_a_broken_environment_is_one_line_and_exit_code_2(invoke, variables, message, monkeypatch):
    """Fails if a rank that was started by hand ends in a traceback, or waits for others."""
    for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = invoke("--set", "layout.pp=1")
    assert result.exit_code == 2
    assert f"error: {message}" in result.stderr.replace(f"rank {variables.get('RANK')}: ", "")
    assert len(result.stderr.splitlines()) == 1


def test_an_output_that_cannot_be_written_is_one_line_before_the_training(invoke, tmp_path):
    """Fails if a run trains to its end and then has no place for its losses."""
    (tmp_path / "taken" / "losses.json").mkdir(parents=True)
    (tmp_path / "file").touch()
    for out, message in (
        ("taken", "losses.json cannot be written (Is a directory). Name a folder"),
        ("file", "cannot be written (File exists). Name a folder"),
    ):
        result = invoke("--set", "layout.pp=1", "--out", str(tmp_path / out))
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: --out: {tmp_path / out}")
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_folder_that_has_a_run_already_keeps_it(invoke, tmp_path):
    """Fails if a second run overwrites the losses and the truth of the first."""
    arguments = ["--set", "layout.pp=1", "--set", "train.steps=1", "--out", str(tmp_path)]
    assert invoke(*arguments).exit_code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = invoke(*arguments, "--set", "train.seed=2")
    assert again.exit_code == 0
    second = tmp_path / "attempt2"
    assert again.stdout.splitlines()[0].endswith(f"this one writes into {second}")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert {path.name for path in second.iterdir()} == set(before)


def test_a_wrong_clock_without_a_capture_is_refused_before_the_training(
    invoke, tmp_path, monkeypatch
):
    """Fails if another run's capture is taken, or the fault is found missing at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("meshscope.probe.api._attached", None)
    result = invoke("--set", "layout.pp=1", "--fault", "clock_skew:rank=0,offset_ms=300")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "rank 0 has no capture, so no clock to skew" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_what_fails_on_one_rank_only_is_said_by_that_rank(invoke, monkeypatch):
    """Fails if a job ends without a word because its first rank had nothing to complain about."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "none"}.items():
        monkeypatch.setenv(name, value)
    alone = invoke("--preset", "tiny")
    assert alone.stderr.startswith("rank 1: error: LOCAL_RANK: 'none' is not a number")
    # What all ranks find alike, the first one says for all.
    together = invoke("--preset", "demo")
    assert (together.exit_code, together.stderr) == (2, "")


def test_ranks_are_simulated_one_after_the_other_in_one_process(invoke):
    """Fails if a user cannot see what ranks of a larger job hold."""
    result = invoke("--simulate-rank", "0,1", "--set", "layout.dp=2")
    assert result.exit_code == 0
    ranks = [line for line in result.stdout.splitlines() if line.startswith("rank ")]
    assert [line.split()[1:4] for line in ranks] == [["0", "of", "4:"], ["1", "of", "4:"]]


def test_a_dry_run_prints_the_plan_and_starts_nothing(invoke, monkeypatch):
    """Fails if a plan needs the ranks that it is about."""
    monkeypatch.setattr("meshscope.reference_trainer.__main__._train", None)
    result = invoke("--preset", "gpt3-175b", "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.startswith("layout    1,024 ranks")


def test_help_names_the_presets(invoke):
    """Fails if a user cannot find out what can be run."""
    assert "demo" in invoke("--help").stdout


def test_help_shows_the_table_of_faults(invoke):
    """Fails if a help text loses the brackets of the TOML table that a user shall write."""
    assert "[[faults]]" in invoke("--help").stdout


def test_a_second_start_goes_on_from_the_latest_checkpoint(invoke, tmp_path):
    """Fails if the same command starts again at step 0, or a longer run cannot follow."""
    saved = tmp_path / "saved"
    arguments = ["--set", "layout.pp=1", "--set", f"checkpoint.dir={saved}"]
    first = invoke(*arguments, "--set", "train.steps=2")
    assert first.exit_code == 0
    again = invoke(*arguments, "--set", "train.steps=2")
    assert again.exit_code == 0
    assert again.stdout == f"resumed from {saved}/step-00000002 at step 2\n"
    longer = invoke(*arguments, "--set", "train.steps=3", "--set", "train.seed=5")
    resumed, changed, step = longer.stdout.splitlines()
    assert resumed.endswith("at step 2")
    assert changed == "  train.seed is 5, and was 1"
    assert step.split()[:2] == ["step", "2"]
    afresh = invoke(*arguments, "--set", "train.steps=1", "--set", "checkpoint.resume=none")
    assert afresh.stdout.split()[:2] == ["step", "0"]


def test_a_checkpoint_that_cannot_be_used_is_one_line(invoke, tmp_path):
    """Fails if a damaged or foreign checkpoint ends in a traceback, or is passed over."""
    saved = tmp_path / "saved"
    arguments = ["--set", "layout.pp=1", "--set", f"checkpoint.dir={saved}"]
    assert invoke(*arguments, "--set", "train.steps=1").exit_code == 0
    other = invoke(*arguments, "--set", "model.hidden=64")
    tensors = saved / "step-00000001" / "__0_0.distcp"
    content = tensors.read_bytes()
    tensors.write_bytes(bytes(byte ^ 0x5A for byte in content))
    spoilt = invoke(*arguments)
    tensors.write_bytes(b"")
    torn = invoke(*arguments)
    missing = invoke(*arguments, "--set", f"checkpoint.resume={tmp_path / 'none'}")
    for result, code, message in (
        (other, 2, "model.hidden: 64 here, and 32 in the checkpoint after step 1"),
        (spoilt, 1, "cannot be loaded ("),
        (torn, 1, "is damaged: __0_0.distcp has 0 of"),
        (missing, 1, "is not there. Set checkpoint.resume to"),
    ):
        assert result.exit_code == code
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_checkpoint_that_cannot_be_written_ends_the_run_in_one_line(invoke, tmp_path, mode):
    """Fails if training goes on without the checkpoints that were asked for."""
    (tmp_path / ".step-00000001.partial").touch()  # in the way of the folder
    arguments = ["--set", "layout.pp=1", "--set", f"checkpoint.dir={tmp_path}"]
    result = invoke(*arguments, "--set", "checkpoint.every=1", "--set", f"checkpoint.mode={mode}")
    assert result.exit_code == 1
    assert "step-00000001: cannot be written (" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "step    2" not in result.stdout
