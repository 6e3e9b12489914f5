"""Attaching with a debugger to a process that knows nothing of the probe."""

import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from meshscope.probe.control.client import ask
from meshscope.probe.control.injection import _run_gdb, attach_by_debugger
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.errors import ConfigError

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

TRAIN = """
import sys, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("ready", flush=True)
while not sys.stdin.closed:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if "meshscope.probe.api" in sys.modules:
        attached = getattr(sys.modules["meshscope.probe.api"], "_attached", None)
        if attached is not None and attached._capture.recorder.step > 5:
            print("recorded", flush=True)
            sys.stdin.read()
            break
"""


@pytest.mark.sampled(keep=())
@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_a_debugger_attaches_a_process_that_has_no_probe(tmp_path, project_dir):
    """Fails when the last resort does not record, or breaks the process."""
    sockets = tempfile.mkdtemp(prefix="ms-")
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": sockets,
        "PYTHONPATH": str(project_dir / "src"),
        "MESHSCOPE_RUN_DIR": str(tmp_path / "run"),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "ready\n"
            try:
                endpoint, stopped_s = attach_by_debugger(process.pid, environment, 60)
            except ConfigError as error:
                if "gdb could not run code" in str(error):
                    pytest.skip(f"gdb may not debug here: {error}")
                raise
            assert stopped_s > 0
            assert process.stdout.readline() == "recorded\n"
            assert ask(endpoint.path, "flush", {}).ok
            process.stdin.close()
            assert process.wait(30) == 0
        finally:
            process.kill()
            shutil.rmtree(sockets, ignore_errors=True)
    capture = read_run(tmp_path / "run")
    assert capture.tables["step"].num_rows > 5
    assert capture.rank_manifests[0]["annotations"]["attached_while_running"] is True


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_a_script_that_cannot_run_leaves_the_process_as_it_was(tmp_path):
    """Fails when an error in what we asked Python to run surfaces in the training."""
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "ready\n"
            try:
                _run_gdb(shutil.which("gdb"), process.pid, tmp_path / "no \"such\" 'file'")
            except ConfigError as error:
                pytest.skip(f"gdb may not debug here: {error}")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
        finally:
            process.kill()
        assert process.stderr.read() == ""
