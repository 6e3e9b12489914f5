"""``meshscope attach``: its errors, its exit codes, what it says of ranks elsewhere."""

import os

import pytest
from typer.testing import CliRunner

from meshscope.cli import app
from meshscope.probe.control import directory
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.manifest import write_json
from meshscope.probe.schema.rundir import create_run


def attach(*options):
    """Run the command; return its exit code and what it wrote, or raise its error."""
    ran = CliRunner().invoke(app, ["attach", *map(str, options)])
    if isinstance(ran.exception, ConfigError):
        raise ran.exception
    return ran.exit_code, ran.output


@pytest.mark.parametrize("options", [(), ("--run", "a", "--pid", "1")])
def test_one_of_run_and_process_is_needed(options):
    """Fails when the command guesses what it should act on."""
    with pytest.raises(ConfigError, match="either a run or a process"):
        attach(*options)


@pytest.mark.parametrize("options", [("--level", "steps", "--detach"), ("--status", "--remove")])
def test_orders_that_contradict_each_other_are_refused(options):
    """Fails when one of two orders is carried out and the other passed over in silence."""
    with pytest.raises(ConfigError, match="exclude each other"):
        attach("--run", "a", *options)


def test_a_process_that_is_not_there():
    """Fails when a mistyped id sends the user to another Python, or to gdb."""
    with pytest.raises(ConfigError, match="there is no process 999999999"):
        attach("--pid", 999999999)


def test_a_level_for_a_run_that_has_ended(tmp_path):
    """Fails when a job that is over is told to wait for its next step."""
    run = create_run(tmp_path, "a", {"world_size": 2})
    code, output = attach("--run", run, "--level", "steps")
    assert code == 1
    assert "ranks 0, 1 have no control socket" in output


def test_the_debugger_needs_a_process():
    """Fails when gdb would be let loose on a whole run."""
    with pytest.raises(ConfigError, match="--unsafe-gdb: needs a process"):
        attach("--run", "a", "--unsafe-gdb")


def test_gdb_is_never_used_without_being_asked(monkeypatch):
    """Fails when a process without a socket is stopped by a debugger unasked."""
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a program was started"))
    monkeypatch.delattr("sys.remote_exec", raising=False)
    with pytest.raises(ConfigError, match="has no control socket"):
        attach("--pid", os.getpid())


@pytest.mark.parametrize("option", ["--status", "--detach", "--remove"])
def test_a_question_brings_no_probe_into_a_process(monkeypatch, option):
    """Fails when asking how a process is, or telling it to cease, begins to record it."""
    monkeypatch.setattr("sys.remote_exec", lambda *_: pytest.fail("attached"), raising=False)
    with pytest.raises(ConfigError, match="has no control socket: it is not recorded"):
        attach("--pid", os.getpid(), option)


def test_a_run_that_is_not_there():
    """Fails when a typing error shows as a traceback."""
    with pytest.raises(ConfigError, match="is not a run directory"):
        attach("--run", "nothing/of/this/name")


def test_a_run_that_has_ended(tmp_path):
    """Fails when a run without living ranks counts as attached."""
    run = create_run(tmp_path, "a", {"world_size": 2})
    code, output = attach("--run", run)
    assert code == 1
    assert "ranks 0, 1 have no control socket" in output


def test_ranks_of_other_hosts_are_left_to_them(tmp_path):
    """Fails when the user is not told where to run the command."""
    run = create_run(tmp_path, "a", {"world_size": 40})
    (run / directory.FOLDER).mkdir()
    for rank in range(40):
        note = {"rank": rank, "pid": 1, "host": "node-7", "boot_id": "x", "socket": "/x.sock"}
        write_json(run / directory.FOLDER / f"rank{rank:05d}.1.json", note)
    code, output = attach("--run", run, "--status")
    assert code == 1
    assert "13, 14, 15 and 24 more are on node-7: run this command there" in output
