"""What doctor says of this machine, and of machines that lack something."""

import json
import socket
import sys

import pytest
from typer.testing import CliRunner

from meshscope.cli import app
from meshscope.probe.compat.absent import lacks
from meshscope.probe.doctor import checks as module
from meshscope.probe.doctor.checks import State, all_checks


def named(checks, name):
    """Return the check of a name."""
    return next(check for check in checks if check.name == name)


def test_this_machine_is_looked_at(tmp_path):
    """Fails when doctor misses what the tests of the probe rely on here."""
    found = all_checks(tmp_path / "runs")
    for name in ("python", "torch", "collectives", "waits", "runs folder", "sockets"):
        assert named(found, name).state is State.OK, name
    assert not (tmp_path / "runs").exists()


def test_what_is_missing_comes_with_a_remedy(tmp_path):
    """Fails when a user learns that something does not work and not what to do."""
    found = all_checks(tmp_path)
    assert [
        check.name for check in found if check.state is State.MISSING and not check.remedy
    ] == []


def test_a_python_without_its_lock_is_found(tmp_path, monkeypatch):
    """Fails when doctor calls a Python good in which the probe refuses to record."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    python = named(all_checks(tmp_path), "python")
    assert python.state is State.MISSING
    assert "interpreter lock" in python.found
    assert "PYTHON_GIL=1" in python.remedy


def test_a_folder_that_cannot_be_written_is_found(tmp_path, monkeypatch):
    """Fails when a job records nothing and doctor saw nothing wrong."""
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    check = named(all_checks(tmp_path), "runs folder")
    assert check.state is State.MISSING
    assert "--runs" in check.remedy


def test_a_torch_without_redispatch_is_found(tmp_path, monkeypatch):
    """Fails when the reason why collectives are missing is not reported before a run."""

    def missing():
        raise lacks("redispatch")

    monkeypatch.setattr(module.torch_names, "dispatcher", missing)
    found = all_checks(tmp_path)
    check = named(found, "collectives")
    assert (check.state, check.found) == (State.MISSING, "redispatch is missing")


def test_a_place_without_sockets_is_found(tmp_path, monkeypatch):
    """Fails when running jobs cannot be reached and doctor promised it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    assert named(all_checks(tmp_path), "sockets").state is State.MISSING
    assert socket.AF_UNIX


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("MESHSCOPE_DISABLE", "1", "switched off"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", "level kernels"),
    ],
)
def test_settings_that_stop_something_are_found(tmp_path, monkeypatch, variable, value, name):
    """Fails when a forgotten variable keeps the probe from recording in silence."""
    monkeypatch.setenv(variable, value)
    assert named(all_checks(tmp_path), name).state is not State.OK


def test_the_command_writes_both_forms(tmp_path):
    """Fails when programs cannot read what doctor found."""
    done = CliRunner().invoke(app, ["doctor", "--format", "json", "--runs", str(tmp_path)])
    assert done.exit_code == 0
    checks = json.loads(done.stdout)["checks"]
    assert {"name", "state", "found", "remedy"} == set(checks[0])
    text = CliRunner().invoke(app, ["doctor", "--runs", str(tmp_path)]).stdout
    assert all(check["name"] in text for check in checks)
