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
from meshscope.probe.schema.errors import ConfigError


def test_an_older_python_says_what_it_lacks(variables, monkeypatch):
    """Fails when the user is not told what would help."""
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    assert "needs Python 3.14" in injection.can_remote_exec()
    with pytest.raises(ConfigError, match=r"no control socket.*--dormant.*--unsafe-gdb"):
        injection.attach_by_interpreter(os.getpid(), variables, 0.1)


def test_the_script_is_handed_over_in_private_and_taken_away(variables, short_dir, monkeypatch):
    """Fails when others can read or replace the script, or it stays behind."""
    seen = []

    def remote_exec(pid, path):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        folder = os.path.dirname(path)
        text = Path(path).read_text()
        seen.append((pid, mode, stat.S_IMODE(os.stat(folder).st_mode), text))

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    with pytest.raises(ConfigError, match="has not attached within"):
        injection.attach_by_interpreter(os.getpid(), variables, 0.1)
    ((pid, mode, folder_mode, script),) = seen
    assert (pid, mode, folder_mode) == (os.getpid(), 0o600, 0o700)
    compile(script, "attach.py", "exec")
    assert list((short_dir / "meshscope").iterdir()) == []


def test_the_script_only_attaches(variables, monkeypatch):
    """Fails when the script does not reach the probe, or does it on the training thread."""
    began_in = []
    monkeypatch.setattr(
        "meshscope.probe.late.begin", lambda: began_in.append(threading.current_thread().name)
    )
    script = injection._write_script(os.getpid(), variables)
    path_before = list(sys.path)
    runpy.run_path(str(script))
    for thread in threading.enumerate():
        if thread.name == "meshscope-attach":
            thread.join(10)
    assert began_in == ["meshscope-attach"]
    assert sys.path == path_before


def test_a_process_that_is_not_there(variables, monkeypatch):
    """Fails when a wrong process id shows as a traceback."""
    monkeypatch.setattr(sys, "remote_exec", lambda *_: None, raising=False)
    with pytest.raises(ConfigError, match="there is no process 4194305"):
        injection.attach_by_interpreter(2**22 + 1, variables, 0.1)
    assert not is_alive(2**22 + 1)


def test_the_debugger_has_to_be_there(variables, monkeypatch):
    """Fails when a missing gdb shows as a traceback."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="gdb is not installed"):
        injection.attach_by_debugger(os.getpid(), variables, 0.1)
