"""A process that is killed in the middle of an attach: the command says so, and nothing of it stays."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from meshscope.probe.control.client import endpoint_at

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(sys, "remote_exec") and shutil.which("gdb") is None,
        reason="needs gdb, or Python 3.14 for sys.remote_exec",
    ),
]

TRAIN = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("ready", flush=True)
while True:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
_LOOK_S = 0.005
_LONGEST_S = 120
_SOON_S = 30


def _script(sockets, run, pid):
    return any(sockets.rglob("attach.py"))


def _traced(sockets, run, pid):
    return "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")


def _run(sockets, run, pid):
    return run.exists()


def _socket(sockets, run, pid):
    return any(endpoint_at(path) for path in sockets.rglob("*.sock"))


MOMENTS = {"script": _script, "debugger": _traced, "run": _run, "socket": _socket}


@pytest.fixture
def place(tmp_path, project_dir):
    """Return the environment of a user, with a runtime directory of its own."""
    sockets = tempfile.mkdtemp(prefix="ms-")
    yield {
        **os.environ,
        "XDG_RUNTIME_DIR": sockets,
        "PYTHONPATH": str(project_dir / "src"),
        "MESHSCOPE_RUN_DIR": str(tmp_path / "run"),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "1",
    }
    shutil.rmtree(sockets, ignore_errors=True)


def _ended_attach(place, moment, *, is_held):
    """Kill a process that trains when a moment of the attach has come; return how the command ended.

    Args:
        place: Variables of both.
        moment: Tells from the folders and the process whether it has come.
        is_held: Stop the process then, until the command waits for its answer.
    """
    sockets, run = Path(place["XDG_RUNTIME_DIR"]), Path(place["MESHSCOPE_RUN_DIR"])
    way = [] if hasattr(sys, "remote_exec") else ["--unsafe-gdb"]
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN], env=place, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            with subprocess.Popen(
                [sys.executable, "-m", "meshscope", "attach", "--pid", str(process.pid), *way],
                env=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            ) as command:  # fmt: skip
                for _ in range(int(_LONGEST_S / _LOOK_S)):
                    if moment(sockets, run, process.pid) or command.poll() is not None:
                        break
                    try:
                        command.wait(_LOOK_S)
                    except subprocess.TimeoutExpired:
                        continue
                if is_held:
                    process.send_signal(signal.SIGSTOP)
                    with pytest.raises(subprocess.TimeoutExpired):
                        command.wait(3)
                process.kill()
                try:
                    words, _ = command.communicate(timeout=_SOON_S)
                finally:
                    command.kill()
        finally:
            process.kill()
    if "ptrace: Operation not permitted" in words:
        pytest.skip(f"gdb may not debug here: {words}")
    return command.returncode, words


@pytest.mark.sampled(keep=("socket-True",))
@pytest.mark.parametrize(
    ("name", "is_held"),
    [("script", False), ("debugger", False), ("run", False), ("socket", False), ("socket", True)],
)
def test_the_command_ends_and_leaves_nothing(place, name, is_held):
    """Fails when `meshscope attach --pid` hangs, says nothing of the end, or leaves a socket or script."""
    if name == "debugger" and hasattr(sys, "remote_exec"):
        pytest.skip("needs a Python before 3.14: later ones are attached without a debugger")
    code, words = _ended_attach(place, MOMENTS[name], is_held=is_held)
    assert code == 2, words
    assert "has ended" in words.splitlines()[-1], words
    assert "Traceback" not in words
    assert list(Path(place["XDG_RUNTIME_DIR"], "meshscope").iterdir()) == []
