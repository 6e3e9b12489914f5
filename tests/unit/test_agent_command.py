"""The command of the node agent: what it refuses, and what it tells the agent of a run."""

import signal

import pytest
from typer.testing import CliRunner

from meshscope.analyze.formulas.flops import flops_per_token, model_shape
from meshscope.analyze.load.kept_tables import read_kept
from meshscope.cli import app
from meshscope.commands import at_rest
from meshscope.commands.agent import _flops_of_run
from meshscope.probe.agent.host_directory import HostDirectory
from meshscope.probe.agent.settings import AgentSettings
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.errors import ConfigError, RunDirectoryError
from meshscope.probe.schema.manifest import MANIFEST_NAME, rank_directory, read_json, write_json
from meshscope.probe.schema.rundir import create_run

MODEL = {
    "num_layers": 2,
    "hidden_size": 32,
    "seq_len": 16,
    "vocab_size": 64,
    "parameters": 21760,
}
RUN = {"model": MODEL, "tokens_per_step": 64, "peak_flops": 1e12}


def test_flops_are_those_of_the_analyses():
    """Fails when the live MFU counts other FLOPs than the diagnosis of the same run."""
    flops, peak = _flops_of_run(RUN)
    assert flops == flops_per_token(model_shape(MODEL)) * 64
    assert peak == 1e12


def test_the_peak_of_a_known_device_is_known():
    """Fails when a run on a common device has no MFU because nobody stated its peak."""
    found = _flops_of_run({**RUN, "peak_flops": None, "device_name": "NVIDIA H100 80GB HBM3"})
    assert found is not None
    assert found[1] > 1e14


@pytest.mark.parametrize(
    "change",
    [
        {"model": {}},
        {"model": {"num_layers": 2}},
        {"tokens_per_step": None},
        {"peak_flops": None, "device_name": "unheard of"},
        {"peak_flops": -1.0},
        {"model": "x"},
    ],
)
def test_what_is_not_known_gives_no_mfu(change):
    """Fails when an MFU is made up from half of what it needs."""
    assert _flops_of_run({**RUN, **change}) is None


def test_an_agent_that_keeps_nothing_is_refused():
    """Fails when an agent samples for nobody."""
    result = CliRunner().invoke(app, ["agent"])
    assert result.exit_code == 2
    assert "--run, --record or --port" in result.output


def test_a_path_that_is_no_run_is_refused(tmp_path):
    """Fails when an agent makes a directory of its own in a folder that is no run."""
    result = CliRunner().invoke(app, ["agent", "--run", str(tmp_path)])
    assert isinstance(result.exception, RunDirectoryError)
    assert list(tmp_path.iterdir()) == []


def test_the_second_agent_of_a_launcher_leaves_quietly(tmp_path):
    """Fails when two launchers of one job on one node end in an error."""
    path = create_run(tmp_path, "run", {})
    first = HostDirectory(path, AgentSettings().bounds)
    try:
        by_launcher = ["agent", "--run", str(path), "--launcher", "1"]
        assert CliRunner().invoke(app, by_launcher).exit_code == 0
        by_hand = CliRunner().invoke(app, ["agent", "--run", str(path)])
        assert isinstance(by_hand.exception, ConfigError)
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        first.close()


def recorded(folder, *, host=None, closed=True):
    """Return a run with one rank that recorded a few steps, here or on another host."""
    path = create_run(folder, "run", {"world_size": 1})
    settings = StorageSettings(wake_s=3600.0, slot_count=64, free_floor_frac=0.0)
    recorder = Recorder(path, 0, settings=settings)
    for step in range(4):
        recorder.step = step
        recorder.record_step(step, step * 1000 + 900, 1)
    recorder.close()
    manifest = rank_directory(path, 0) / MANIFEST_NAME
    changes = {} if host is None else {"host": host}
    changes |= {} if closed else {"closed_unix_ns": None}
    write_json(manifest, read_json(manifest) | changes)
    return path


def test_an_agent_at_rest_keeps_the_tables_of_the_run(tmp_path):
    """Fails when a run that ended has to be read from a file a rank by everybody who opens it."""
    run = recorded(tmp_path)
    asked = ["agent", "--run", str(run), "--duration", "0.1"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert read_kept(run) is None
    assert CliRunner().invoke(app, [*asked, "--compact"]).exit_code == 0
    assert read_kept(run) is not None


@pytest.mark.parametrize("change", [{"host": "another"}, {"closed": False}])
def test_tables_of_other_nodes_and_of_killed_ranks_are_left_alone(tmp_path, monkeypatch, change):
    """Fails when every node writes the same tables, or those of a run that may still be recording are kept."""
    monkeypatch.setattr(at_rest, "_CLOSED_S", 0.1)
    run = recorded(tmp_path, **change)
    assert not at_rest.keep_tables(run)
    assert read_kept(run) is None
