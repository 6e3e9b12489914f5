"""Attaching through the interpreter to processes that know nothing of the probe."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from contextlib import contextmanager

import pytest

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(sys, "remote_exec"), reason="sys.remote_exec is there from Python 3.14 on"
    ),
]

TRAIN = """
import os, sys, threading, torch
import torch.distributed as dist
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
halt = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), halt.set()), daemon=True).start()
traces = lambda: (list(sys.path), sorted(os.environ), [type(f).__name__ for f in sys.meta_path])
before = traces()
print("ready", flush=True)
done = 0
while True:
    loss = model(torch.ones(1, 4)).pow(2).sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    done += 1
    last = torch.tensor(int(halt.is_set()))
    if dist.is_initialized():
        dist.all_reduce(last)
    if last:
        break
    halt.wait(0.005)
assert before == traces(), (before, traces())
# The same steps once more, with nothing of ours in between.
torch.manual_seed(0)
model2 = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model2.parameters(), lr=0.01)
for _ in range(done):
    again = model2(torch.ones(1, 4)).pow(2).sum()
    optimizer.zero_grad(); again.backward(); optimizer.step()
print("same" if torch.equal(loss, again) else f"{loss} is not {again}", flush=True)
"""

BLOCKED = """
import ctypes, sys, time, torch
print("ready", flush=True)
ctypes.CDLL(None).sleep(8)
time.sleep(0.1)
print("back", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def place(tmp_path, project_dir):
    """Return the environment of a user, with a runtime directory of its own."""
    sockets = tempfile.mkdtemp(prefix="ms-")
    inherited = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    yield {
        **inherited,
        "XDG_RUNTIME_DIR": sockets,
        "PYTHONPATH": str(project_dir / "src"),
        "OMP_NUM_THREADS": "1",
    }
    shutil.rmtree(sockets, ignore_errors=True)


@contextmanager
def started(code, place, tmp_path, *options, **changes):
    """Run code as a process that ends by one line on stdin; wait until it is ready.

    It cannot import the probe by itself.
    """
    environment = {k: v for k, v in place.items() if k != "PYTHONPATH"} | changes
    with (
        open(tmp_path / f"stderr{changes.get('RANK', '')}", "w+", encoding="utf-8") as complaints,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *options, "-c", textwrap.dedent(code)],
            env=environment, cwd=tmp_path, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints,
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def complaints_of(tmp_path, rank=""):
    """Return what the process wrote to its stderr."""
    return (tmp_path / f"stderr{rank}").read_text(encoding="utf-8")


def attach(place, *arguments):
    """Run ``meshscope attach``; return its exit code and all that it said."""
    done = subprocess.run(
        [sys.executable, "-m", "meshscope", "attach", *map(str, arguments)],
        env=place, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    words = done.stdout + done.stderr
    if "may not be debugged" in words or "Operation not permitted" in words:
        pytest.skip(f"no process may be debugged here: {words}")
    return done.returncode, words


def end(process):
    """Tell a process to end; return what it printed last."""
    rest, _ = process.communicate("end\n", timeout=60)
    assert process.returncode == 0
    return rest.split()[-1]


def test_a_plain_process_is_attached_and_left_as_it_was(place, tmp_path):
    """Fails when the training does not go on alike, or something stays after --remove."""
    with started(TRAIN, place, tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        code, words = attach(place, "--pid", process.pid, "--status")
        assert (code, "has no control socket" in words) == (2, True)
        code, words = attach(place, "--pid", process.pid)
        assert (code, f"pid {process.pid}  recording" in words) == (0, True), words
        assert attach(place, "--pid", process.pid, "--remove")[0] == 0
        assert attach(place, "--pid", process.pid, "--status")[0] == 2
        assert end(process) == "same"
    assert complaints_of(tmp_path) == ""
    assert len(list(tmp_path.glob("meshscope_runs/run-*/rank00000"))) == 1
    assert os.listdir(f"{place['XDG_RUNTIME_DIR']}/meshscope") == []


def test_a_process_with_another_runtime_directory_is_found(place, tmp_path):
    """Fails when a job of a batch system cannot be attached from a shell of its user."""
    with (
        tempfile.TemporaryDirectory(prefix="ms-") as other,
        started(TRAIN, place, tmp_path, XDG_RUNTIME_DIR=other) as process,
    ):
        assert process.stdout.readline() == "ready\n"
        assert attach(place, "--pid", process.pid)[0] == 0
        assert attach(place, "--pid", process.pid, "--remove")[0] == 0
        assert end(process) == "same"


def test_a_job_of_two_ranks_is_attached_one_by_one(place, tmp_path, free_port):
    """Fails when the ranks of a job do not meet in one run, or their training changes."""
    job = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "job",
    }  # fmt: skip
    with (
        started(TRAIN, place, tmp_path, RANK="0", LOCAL_RANK="0", **job) as first,
        started(TRAIN, place, tmp_path, RANK="1", LOCAL_RANK="1", **job) as second,
    ):
        for rank, process in enumerate((first, second)):
            assert process.stdout.readline() == "ready\n"
            code, words = attach(place, "--pid", process.pid)
            assert (code, f"rank {rank}" in words) == (0, True), words
        run = tmp_path / "meshscope_runs/run-job"
        code, words = attach(place, "--run", run, "--status")
        assert (code, words.count("recording")) == (0, 2), words
        assert attach(place, "--run", run, "--remove")[0] == 0
        first.stdin.write("end\n")
        first.stdin.flush()
        second.stdin.close()
        assert (first.wait(60), second.wait(60)) == (0, 0)
        assert [p.stdout.read() for p in (first, second)] == ["same\n", "same\n"]
    assert {path.name for path in run.glob("rank*")} == {"rank00000", "rank00001"}


def test_a_process_that_waits_in_c_code_attaches_when_it_comes_back(place, tmp_path):
    """Fails when it complains in the training's output of a script that is gone."""
    with started(BLOCKED, place, tmp_path, RANK="0", WORLD_SIZE="1") as process:
        assert process.stdout.readline() == "ready\n"
        code, words = attach(place, "--pid", process.pid, "--timeout", "0.5")
        assert (code, "attaches when it comes back" in words) == (2, True), words
        assert process.stdout.readline() == "back\n"
        for _ in range(100):
            code, words = attach(place, "--pid", process.pid, "--status")
            if code == 0:
                break
        assert code == 0, words
        end_of = process.communicate("end\n", timeout=60)
        assert (process.returncode, end_of[0]) == (0, "")
    assert complaints_of(tmp_path, rank=0) == ""


@pytest.mark.parametrize("option", ["variable", "-X"])
def test_a_process_that_forbids_it_is_left_alone(place, tmp_path, option):
    """Fails when the user is not told what forbids it and what would help."""
    options = ("-X", "disable-remote-debug") if option == "-X" else ()
    changes = {} if options else {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}
    code = "import sys; print('ready', flush=True); sys.stdin.readline()"
    with started(code, place, tmp_path, *options, **changes) as process:
        assert process.stdout.readline() == "ready\n"
        code, words = attach(place, "--pid", process.pid)
        assert (code, "-X disable-remote-debug" in words) == (2, True), words
        assert process.poll() is None
    assert os.listdir(f"{place['XDG_RUNTIME_DIR']}/meshscope") == []


def test_a_process_that_cannot_import_the_probe_says_why_at_once(place, tmp_path):
    """Fails when the user waits for the timeout and is sent to read another output."""
    code = "import sys; sys.modules['meshscope.probe'] = None; print('ready', flush=True)\n"
    code += "while sys.stdin.readline() != 'end\\n': pass\nprint('out')"
    looping = code.replace("while", "import time\nfor _ in range(200): time.sleep(0.02)\nwhile")
    with started(looping, place, tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        code, words = attach(place, "--pid", process.pid, "--timeout", "100")
        assert (code, "did not attach: ModuleNotFoundError" in words) == (2, True), words
        assert end(process) == "out"
    assert "not attached: ModuleNotFoundError" in complaints_of(tmp_path)


def test_another_program_is_distinguished_from_a_python(place):
    """Fails when a wrong process id shows as an inner error without a remedy."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            code, words = attach(place, "--pid", process.pid)
        finally:
            process.kill()
    version = ".".join(map(str, sys.version_info[:2]))
    assert (code, f"It must run Python {version}" in words) == (2, True), words
