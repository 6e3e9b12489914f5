"""Under a limit of processes the training keeps the threads that are left."""

import os
import shutil
import subprocess
import sys
import textwrap
import threading

import pytest

from meshscope import probe
from meshscope.probe.launching import rank_start
from meshscope.probe.safety import room
from meshscope.probe.safety.room import too_few_threads
from meshscope.probe.safety.threads import start_deaf

TRAIN = textwrap.dedent(
    """
    import sys
    import torch
    if len(sys.argv) > 1:
        from meshscope import probe
        probe.attach(sys.argv[1])
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
    print(float(loss.detach()).hex())
    """
)
_UID = 64100
"""Of nobody else, as the kernel counts all processes of a user."""


@pytest.fixture
def leave(monkeypatch):
    """Return a function that leaves so many threads to the process."""

    def leave(most):
        def start(thread):
            if sum(kept.name == "meshscope-trial" for kept in threading.enumerate()) >= most:
                raise RuntimeError("can't start new thread")
            start_deaf(thread)

        monkeypatch.setattr(room, "start_deaf", start)

    return leave


def test_the_trial_leaves_no_thread(leave):
    """Fails when threads are seen where there are none, or stay behind when they were counted."""
    before = threading.enumerate()
    assert too_few_threads() == ""
    leave(3)
    assert too_few_threads(3) == ""
    assert "(ulimit -u, or that of the container) leaves 3 threads" in too_few_threads(4)
    assert threading.enumerate() == before


def test_without_room_nothing_is_recorded(leave, tmp_path, capfd):
    """Fails when the probe takes the last threads of a training, or is silent about its absence."""
    leave(2)
    assert probe.attach(tmp_path / "run") is None
    assert "not attached: the limit of processes" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_dormant_rank_without_room_says_so(leave, tmp_path, capfd, monkeypatch):
    """Fails when a rank that nobody will be able to attach says nothing about it."""
    for name in ("RANK", "WORLD_SIZE", "MESHSCOPE_ATTACHED_PID", "MESHSCOPE_DORMANT"):
        monkeypatch.setenv(name, {"RANK": "0"}.get(name, "1"))
    monkeypatch.setenv("MESHSCOPE_RUN_DIR", str(tmp_path / "run"))
    leave(2)
    rank_start._attach()
    assert "not to be attached: the limit of processes" in capfd.readouterr().err


@pytest.mark.parametrize("has_room", [False, True])
@pytest.mark.parametrize("is_ours", [False, True])
def test_the_client_of_kineto_is_spared_where_no_thread_is_left(
    leave, monkeypatch, has_room, is_ours
):
    """Fails when ``import torch`` dies for a thread that we asked for, or another's wish is undone."""
    monkeypatch.setenv("KINETO_USE_DAEMON", "1")
    monkeypatch.setenv("MESHSCOPE_RUN_DIR", "run")
    monkeypatch.delenv("KINETO_IPC_SOCKET_DIR", raising=False)
    if is_ours:
        monkeypatch.setenv("KINETO_IPC_SOCKET_DIR", "sockets")
    leave(100 if has_room else 2)
    rank_start._spare_kineto()
    assert ("KINETO_USE_DAEMON" in os.environ) == (has_room or not is_ours)


def limited(number, place, *command):
    """Run a command as a user of its own with a limit of processes; return what it has said."""
    # Only this capability is left, by which it reads the interpreter; it lifts no limit.
    drop = ("--clear-groups", "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override")
    user = str(_UID + number)
    os.chown(place, int(user), -1)
    return subprocess.run(
        ["setpriv", "--reuid", user, "--regid", user, *drop,
         "prlimit", f"--nproc={number}:{number}", *command],
        cwd=place, capture_output=True, text=True, timeout=120,
        env={**os.environ, "TMPDIR": str(place), "XDG_RUNTIME_DIR": "",
             "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.sampled(keep=("3",))
@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("setpriv") and shutil.which("prlimit")),
    reason="needs root, setpriv and prlimit to become a user with a limit",
)
@pytest.mark.parametrize("number", [1, 3])
def test_a_training_under_a_real_limit_goes_on(tmp_path, number):
    """Fails when ``ulimit -u`` ends a training that would have passed without the probe."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    train = (sys.executable, str(script))
    alone = limited(1, tmp_path, *train)
    if number == 1:
        watched = limited(1, tmp_path, *train, str(tmp_path / "run"))
    else:
        runs = ("--runs", str(tmp_path / "runs"))
        watched = limited(
            3, tmp_path, sys.executable, "-m", "meshscope", "run", *runs, "--", *train
        )
        assert "the job runs without a node agent: the limit of processes" in watched.stderr
    assert (alone.returncode, watched.returncode) == (0, 0), watched.stderr
    assert watched.stdout == alone.stdout
    assert "not attached: the limit of processes" in watched.stderr
    assert "Traceback" not in watched.stderr
