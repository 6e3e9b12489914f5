"""Attaching to processes that were started without the probe."""

import os
import runpy
import stat
import sys
import threading
from pathlib import Path

import pytest

from meshscope.probe.control import injection
from meshscope.probe.control.finding import is_alive
from meshscope.probe.control.injection import AttachScript
from meshscope.probe.schema.errors import ConfigError


def test_an_older_python_says_what_it_lacks(variables, monkeypatch):
    """Fails when the user is not told what would help."""
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    assert "needs Python 3.14" in injection.can_remote_exec()
    with pytest.raises(ConfigError, match=r"no control socket.*--dormant.*--unsafe-gdb"):
        injection.attach_by_interpreter(os.getpid(), variables, 0.1)


def test_the_script_is_handed_over_in_private(variables, short_dir, monkeypatch):
    """Fails when others can read or replace the script, or one that never ran is piled on."""
    seen = []

    def remote_exec(pid, path):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        folder = os.path.dirname(path)
        text = Path(path).read_text()
        seen.append((pid, mode, stat.S_IMODE(os.stat(folder).st_mode), text))

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"has not run Python.*attaches when it comes back"):
            injection.attach_by_interpreter(os.getpid(), variables, 0.1)
    pid, mode, folder_mode, script = seen[0]
    assert (pid, mode, folder_mode) == (os.getpid(), 0o600, 0o700)
    compile(script, "attach.py", "exec")
    (left,) = (short_dir / "meshscope").iterdir()
    assert left == Path(seen[-1][3].split("script, folder = '")[1].split("'")[0]).parent


def test_the_script_only_attaches(variables, short_dir, monkeypatch):
    """Fails when the script does not reach the probe, does it on the training thread, or stays."""
    began_in = []

    def begin():
        began_in.append(threading.current_thread().name)
        return ""

    monkeypatch.setattr("meshscope.probe.launching.running_process.begin", begin)
    script = AttachScript(os.getpid(), variables)
    path_before = list(sys.path)
    assert not script.has_begun
    run_to_its_end(script)
    assert began_in == ["meshscope-attach"]
    assert (script.has_begun, script.refusal()) == (True, "")
    assert sys.path == path_before
    assert list((short_dir / "meshscope").iterdir()) == []


def test_a_process_says_what_keeps_it_from_attaching(variables, short_dir, monkeypatch, capsys):
    """Fails when the user waits in vain for a process in which the probe is disabled."""
    monkeypatch.setenv("MESHSCOPE_DISABLE", "1")

    def remote_exec(_, path):
        runpy.run_path(path)

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    with pytest.raises(ConfigError, match="did not attach: MESHSCOPE_DISABLE is set"):
        injection.attach_by_interpreter(os.getpid(), variables, 30)
    assert "meshscope: not attached: MESHSCOPE_DISABLE is set" in capsys.readouterr().err
    assert list((short_dir / "meshscope").iterdir()) == []


def test_ranks_without_a_common_run_say_so(variables, monkeypatch):
    """Fails when a job on several hosts gets a traceback into its output."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MESHSCOPE_RUN_DIR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    script = AttachScript(os.getpid(), variables)
    run_to_its_end(script)
    assert "share no name for the run" in script.refusal()


def run_to_its_end(script):
    """Run a script as the interpreter would, and wait for what it starts."""
    runpy.run_path(str(script.path))
    for thread in threading.enumerate():
        if thread.name == "meshscope-attach":
            thread.join(10)


def test_a_process_that_is_not_there(variables, monkeypatch):
    """Fails when a wrong process id shows as a traceback."""
    monkeypatch.setattr(sys, "remote_exec", lambda *_: None, raising=False)
    with pytest.raises(ConfigError, match="there is no process 4194305"):
        injection.attach_by_interpreter(2**22 + 1, variables, 0.1)
    assert not is_alive(2**22 + 1)


def test_a_process_of_another_user_is_refused_at_once(variables, monkeypatch):
    """Fails when root makes another user's training complain of a file it may not read."""
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(sys, "remote_exec", lambda *_: pytest.fail("asked"), raising=False)
    with pytest.raises(ConfigError, match=r"belongs to user \d+. Run this command as that user"):
        injection.attach_by_interpreter(os.getpid(), variables, 0.1)


def test_another_version_of_python_is_named(variables, monkeypatch):
    """Fails when the user has to guess which Python of the two is the wrong one."""
    monkeypatch.setattr(injection, "_THIS_PYTHON", "3.99")
    version = ".".join(map(str, sys.version_info[:2]))
    monkeypatch.setattr(sys, "remote_exec", lambda *_: pytest.fail("asked"), raising=False)
    with pytest.raises(ConfigError, match=f"this is 3.99; the process runs {version}"):
        injection.attach_by_interpreter(os.getpid(), variables, 0.1)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError(1, "Operation not permitted"), "CAP_SYS_PTRACE"),
        (RuntimeError("Remote debugging is not enabled in the remote process"), "was started with"),
        (RuntimeError("Remote debugging is not enabled"), "Unset PYTHON_DISABLE_REMOTE_DEBUG"),
        (RuntimeError("PyRuntime address lookup failed"), "must run Python"),
    ],
)
def test_what_the_interpreter_answers_comes_with_advice(
    variables, short_dir, monkeypatch, error, advice
):
    """Fails when an inner error is all that the user is told, or the script stays behind."""

    def remote_exec(*_):
        raise error

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    with pytest.raises(ConfigError, match=f"cannot be reached: .*{advice}"):
        injection.attach_by_interpreter(os.getpid(), variables, 0.1)
    assert list((short_dir / "meshscope").iterdir()) == []


def test_the_debugger_has_to_be_there(variables, monkeypatch):
    """Fails when a missing gdb shows as a traceback."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="gdb is not installed"):
        injection.attach_by_debugger(os.getpid(), variables, 0.1)
