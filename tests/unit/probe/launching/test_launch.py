"""``meshscope run``: environment, exit codes, signals, and a sitecustomize of the user."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from meshscope.probe.launching import launch
from meshscope.probe.launching.launch import BOOTSTRAP, run
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.errors import ConfigError

RANK = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
ALONE = {name: value for name, value in RANK.items() if name not in ("RANK", "WORLD_SIZE")}
WHOLE_TRAIN = textwrap.dedent(
    """
    import torch
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    """
)
QUICK = textwrap.dedent(
    """
    import sys, types
    sys.modules["torch._dynamo"] = types.SimpleNamespace(
        disable=lambda function, *_, **__: function, graph_break=lambda: None
    )
    """
)
"""Keeps torch from loading its compiler with the first optimizer: half the time of a few steps."""
TRAIN = QUICK + WHOLE_TRAIN
SPAWNED = textwrap.dedent(
    """
    import sys
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def train(rank, store):
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.start_processes(train, (sys.argv[2],), nprocs=2, start_method=sys.argv[1])
    """
)


def python(code):
    """Return the command that runs code in a fresh interpreter."""
    return [sys.executable, "-c", code]


def test_a_rank_records_itself(tmp_path, capfd):
    """Fails when training code that knows nothing of the probe is not recorded."""
    assert run(python(WHOLE_TRAIN), tmp_path, "a", environment=RANK) == 0
    capture = read_run(tmp_path / "a")
    assert capture.tables["step"].num_rows == 3
    assert capture.rank_manifests[0]["closed_unix_ns"]
    assert capture.rank_manifests[0]["ended_by"] is None
    assert capture.manifest["command"][0] == sys.executable
    assert "1 rank recorded" in capfd.readouterr().err


def test_a_process_without_rank_is_left_alone(tmp_path, capfd):
    """Fails when launchers and tools that import torch are recorded as ranks."""
    variables = {name: value for name, value in RANK.items() if name != "RANK"}
    code = "import torch, sys; sys.exit('meshscope.probe.session.session' in sys.modules)"
    assert run(python(code), tmp_path, "a", environment=variables) == 0
    assert "no process was a rank" in capfd.readouterr().err


def test_training_in_one_process_is_rank_0_of_1(tmp_path, capfd):
    """Fails when ``meshscope run -- python train.py`` records nothing without RANK."""
    assert run(python(TRAIN), tmp_path, "a", environment=ALONE) == 0
    assert "1 rank recorded" in capfd.readouterr().err
    capture = read_run(tmp_path / "a")
    assert capture.manifest["world_size"] == 1
    # The one in which the probe learned that this process trains is not whole.
    assert capture.tables["step"].num_rows == 2
    assert capture.rank_manifests[0]["closed_unix_ns"]


LOADS = QUICK + textwrap.dedent(
    """
    import sys
    import torch
    from torch.utils.data import DataLoader

    def steps_in_a_worker(_):
        weight = torch.nn.Parameter(torch.zeros(1))
        weight.grad = torch.ones(1)
        torch.optim.SGD([weight], lr=1.0).step()

    if __name__ == "__main__":
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.step()
        loader = DataLoader(
            torch.ones(4, 1), num_workers=2, multiprocessing_context=sys.argv[1],
            worker_init_fn=steps_in_a_worker,
        )
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
    """
)


@pytest.mark.sampled(keep=("fork",))
@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_of_a_lone_trainer_are_no_ranks(tmp_path, capfd, method):
    """Fails when a DataLoader worker records beside the training, even if it has an optimizer."""
    script = tmp_path / "train.py"
    script.write_text(LOADS, encoding="utf-8")
    assert run([sys.executable, str(script), method], tmp_path, "a", environment=ALONE) == 0
    assert "1 rank recorded" in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "a").glob("rank*")] == ["rank00000"]
    assert read_run(tmp_path / "a").tables["step"].num_rows == 5


@pytest.mark.slow
def test_trainers_side_by_side_do_not_share_a_rank(tmp_path, capfd):
    """Fails when the trials of a search, which nobody has separated, record as one rank."""
    code = f"""
import subprocess, sys
trial = {TRAIN!r} + "print('trained', flush=True); sys.stdin.read()"
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
command = [sys.executable, "-c", "import sys" + trial]
with subprocess.Popen(command, **pipes) as first:
    first.stdout.readline()
    with subprocess.Popen(command, **pipes) as second:
        second.stdout.readline()
        second.stdin.close()
    first.stdin.close()
"""
    assert run(python(code), tmp_path, "a", environment=ALONE) == 0
    said = capfd.readouterr().err
    assert "rank 0 records nothing: another process of the run records it" in said
    assert [path.name for path in (tmp_path / "a").glob("rank*")] == ["rank00000"]


def test_a_dormant_lone_trainer_waits_to_be_asked(tmp_path, capfd):
    """Fails when a job of one process that was started dormant can never be recorded."""
    code = (
        TRAIN
        + "from meshscope.probe import api; import sys; sys.exit(api._control.run_path is None)"
    )
    assert run(python(code), tmp_path, "a", environment=ALONE, dormant=True) == 0
    assert not list((tmp_path / "a").glob("rank*"))


def test_an_attach_without_a_launcher(tmp_path):
    """Fails when ``python train.py`` that attaches itself records nothing without RANK."""
    code = "from meshscope import probe; probe.attach('a')" + TRAIN
    variables = {name: value for name, value in ALONE.items() if name != "MESHSCOPE_RUN_DIR"}
    subprocess.run(python(code), cwd=tmp_path, env=variables, check=True)
    capture = read_run(tmp_path / "a")
    assert capture.tables["step"].num_rows == 3
    assert capture.manifest["world_size"] == 1


@pytest.mark.parametrize(
    ("variables", "rank", "world_size"),
    [
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}, 2, 4),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0, 1),
    ],
)
def test_a_trainer_without_group_that_a_scheduler_has_numbered(
    tmp_path, variables, rank, world_size
):
    """Fails when tasks of one step are all rank 0, or a batch script's one process is one of many."""
    assert run(python(TRAIN), tmp_path, "a", environment=ALONE | variables) == 0
    capture = read_run(tmp_path / "a")
    assert capture.ranks == (rank,)
    written = json.loads((tmp_path / "a" / f"rank{rank:05d}" / "manifest.json").read_text())
    assert written["rank"] == rank
    assert capture.manifest["world_size"] == (world_size if rank == 0 else None)


@pytest.mark.sampled(keep=("spawn",))
@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_only_an_argument_tells_are_recorded(tmp_path, capfd, method):
    """Fails when ``torch.multiprocessing`` or srun start ranks without RANK, and nothing is recorded."""
    script = tmp_path / "train.py"
    script.write_text(SPAWNED, encoding="utf-8")
    command = [sys.executable, str(script), method, str(tmp_path / "store")]
    variables = {name: value for name, value in RANK.items() if name not in ("RANK", "WORLD_SIZE")}
    assert run(command, tmp_path, "a", environment=variables) == 0
    assert "2 ranks recorded" in capfd.readouterr().err
    capture = read_run(tmp_path / "a")
    assert capture.manifest["world_size"] == 2
    assert set(capture.rank_manifests) == {0, 1}
    assert capture.tables["step"].num_rows == 6


def test_spawned_children_leave_the_capture_alone(tmp_path, capfd):
    """Fails when a worker, which inherits RANK, records over its parent, even if it attaches."""
    code = TRAIN + textwrap.dedent(
        """
        import subprocess, sys
        silent = "import sys, torch; sys.exit('meshscope.probe' in sys.modules)"
        eager = "from meshscope import probe; import sys; sys.exit(probe.attach() is not None)"
        codes = [subprocess.run([sys.executable, "-c", child]).returncode
                 for child in (silent, eager)]
        sys.exit(max(codes))
        """
    )
    assert run(python(code), tmp_path, "a", environment=RANK) == 0
    assert "is recorded as a rank" in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "a").glob("rank*")] == ["rank00000"]
    assert read_run(tmp_path / "a").tables["step"].num_rows == 3


STARTS = """
import os, subprocess, sys
def child(code, **changes):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **changes}).returncode
silent = "import sys, torch; from meshscope.probe import api; sys.exit(10 + bool(api._attached))"
eager = "from meshscope import probe; import sys; sys.exit(10 + (probe.attach() is not None))"
"""


@pytest.mark.slow
def test_a_launcher_that_has_the_rank_of_its_node(tmp_path):
    """Fails when a launcher is taken for the rank that it starts, whose training is then lost."""
    code = STARTS + textwrap.dedent(
        """
        import torch
        assert child(silent, RANK="0", LOCAL_RANK="0") == 11
        assert child(silent) == 10, "a worker of its own"
        """
    )
    assert run(python(code), tmp_path, "a", environment=RANK) == 0


@pytest.mark.slow
def test_what_a_rank_starts_for_itself_is_no_rank(tmp_path):
    """Fails when an evaluation that a rank starts with a launcher is recorded as another rank."""
    code = STARTS + textwrap.dedent(
        """
        import torch
        assert child(silent, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0") == 10
        """
    )
    variables = {**RANK, "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    assert run(python(code), tmp_path, "a", environment=variables) == 0


@pytest.mark.slow
def test_what_a_detached_rank_starts(tmp_path):
    """Fails when it is refused although it asks, or its loader workers come to be recorded."""
    code = STARTS + textwrap.dedent(
        """
        import torch
        from meshscope import probe
        assert child(eager) == 10
        probe.detach()
        assert "MESHSCOPE_OWNER_PID" not in os.environ
        assert child(silent) == 10
        assert child(eager) == 11
        """
    )
    assert run(python(code), tmp_path, "a", environment=RANK) == 0


@pytest.mark.slow
def test_torchrun_that_has_the_rank_of_its_node(tmp_path):
    """Fails when torchrun under Kubeflow, which sets RANK, is recorded in place of its workers."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", str(script)]
    assert run(command, tmp_path / "runs", "a", environment=RANK) == 0
    assert [path.name for path in (tmp_path / "runs" / "a").glob("rank*")] == ["rank00000"]
    assert read_run(tmp_path / "runs" / "a").tables["step"].num_rows == 3


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_a_python_that_ignores_its_environment_is_left_alone(tmp_path, capfd, option):
    """Fails when such a Python does not start, is half attached, or records nothing in silence."""
    code = "import sys; sys.exit('meshscope.probe' in sys.modules)"
    assert run([sys.executable, option, "-c", code], tmp_path, "a", environment=RANK) == 0
    assert f"{option} keeps this Python from what would record it" in capfd.readouterr().err


def test_a_dormant_rank_records_nothing_until_asked(tmp_path, capfd):
    """Fails when a dormant rank has a hook, writes records, or has no socket."""
    code = TRAIN + textwrap.dedent(
        """
        import sys, threading
        from meshscope.probe import api
        names = [thread.name for thread in threading.enumerate()]
        assert set(names) - {"meshscope-siblings"} == {"MainThread", "meshscope-control"}, names
        assert api._attached is None and api._control.is_open
        assert "__wrapped__" not in vars(torch.nn.Module.__call__)
        assert not [finder for finder in sys.meta_path if "meshscope" in type(finder).__module__]
        """
    )
    assert run(python(code), tmp_path, "a", environment=RANK, dormant=True) == 0
    assert list((tmp_path / "a").glob("rank*")) == []
    assert "no process had RANK set" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_killed_launcher_leaves_the_rank_to_its_work(tmp_path):
    """Fails when a rank ends, or loses its records, because ``meshscope run`` was killed."""
    code = TRAIN + "open(sys.argv[1], 'w').close()\nwhile not os.path.exists(sys.argv[2]): pass\n"
    code = f"import os, sys\n{code}\nmodel(torch.ones(1, 2)).sum().backward()\noptimizer.step()\n"
    ready, go = tmp_path / "ready", tmp_path / "go"
    launch = (
        "import sys; from pathlib import Path; from meshscope.probe.launching.launch import run; "
    )
    launcher = subprocess.Popen(
        [
            *python(launch + "sys.exit(run(sys.argv[2:], Path(sys.argv[1]), 'a'))"),
            str(tmp_path),
            *python(code),
            str(ready),
            str(go),
        ],
        env=RANK,
    )
    while not ready.exists():
        assert launcher.poll() is None
        threading.Event().wait(0.02)
    launcher.kill()
    launcher.wait()
    go.touch()
    manifest = tmp_path / "a" / "rank00000" / "manifest.json"
    for _ in range(1500):
        if json.loads(manifest.read_text())["closed_unix_ns"] is not None:
            break
        threading.Event().wait(0.02)
    capture = read_run(tmp_path / "a")
    assert capture.tables["step"].num_rows == 4
    assert capture.rank_manifests[0]["closed_unix_ns"]


def test_a_sitecustomize_of_the_user_still_runs(tmp_path, capfd):
    """Fails when ours hides the one that a site or a user relies on."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.theirs = 42\n")
    code = "import sitecustomize, sys; print(sys.theirs, sitecustomize.__file__)"
    variables = {**RANK, "PYTHONPATH": str(theirs)}
    assert run(python(code), tmp_path, "a", environment=variables) == 0
    assert capfd.readouterr().out.split() == ["42", str(theirs / "sitecustomize.py")]


def test_the_folder_on_the_path_holds_nothing_else():
    """Fails when a file beside sitecustomize.py hides a module of the training code."""
    names = {path.name for path in BOOTSTRAP.iterdir()} - {"__pycache__"}
    assert names == {"sitecustomize.py", "__init__.py"}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    ],
)
def test_the_exit_code_passes_through(tmp_path, code, expected):
    """Fails when a scheduler cannot see that the job failed, or how."""
    assert run(python(code), tmp_path, "a", environment=RANK) == expected


def test_a_killed_rank_is_named_and_keeps_its_records(tmp_path, capfd):
    """Fails when SIGKILL costs the capture, or passes in silence."""
    code = f"{TRAIN}\nimport os\nos.kill(os.getpid(), 9)"
    assert run(python(code), tmp_path, "a", environment=RANK) == 128 + signal.SIGKILL
    assert "before they closed their capture: ranks 0" in capfd.readouterr().err
    assert read_run(tmp_path / "a").tables["step"].num_rows == 3


def test_the_exception_that_ended_a_rank_is_kept(tmp_path):
    """Fails when a capture cannot tell an exception, or Ctrl-C, from the end of the training."""
    code = f"{TRAIN}\nraise LookupError('sec' + 'ret')"
    assert run(python(code), tmp_path, "a", environment=RANK) == 1
    assert read_run(tmp_path / "a").rank_manifests[0]["ended_by"] == "LookupError"
    assert "secret" not in (tmp_path / "a" / "rank00000" / "manifest.json").read_text()


def test_a_command_that_does_not_exist(tmp_path, capfd):
    """Fails when a typing error shows as a traceback, is blamed on the launcher, or leaves an empty run."""
    assert run(["no-such-program-of-a-test"], tmp_path, "a") == 127
    assert not (tmp_path / "a").exists()
    said = capfd.readouterr().err
    assert "cannot start 'no-such-program-of-a-test': No such file" in said
    assert "recorded" not in said


@pytest.mark.parametrize("name", ["no-program", "x" * 200_000, "a\0b"])
def test_a_command_that_the_system_refuses(tmp_path, capfd, name):
    """Fails when a file that is no program ends in an error without the name of the command."""
    (tmp_path / "no-program").write_text("neither script nor binary")
    (tmp_path / "no-program").chmod(0o700)
    assert run([str(tmp_path / name)], tmp_path / "runs", "a") == 127
    said = capfd.readouterr().err
    assert said.startswith("meshscope: cannot start '")
    assert len(said) < 1000
    assert said.count("\n") == 1
    assert not (tmp_path / "runs" / "a").exists()


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ("{}/file", "is not a folder. Name a folder for the runs"),
        ("/proc/nope", "/proc/nope: No such file or directory. Name a folder that can be written"),
        ("/dev/null/x", "is not a folder"),
    ],
)
def test_without_a_place_for_the_run_the_command_runs(tmp_path, capfd, runs, why):
    """Fails when a disk that the capture cannot use keeps a training from its start."""
    (tmp_path / "file").write_text("")
    code = "import os, sys; sys.exit(7 + ('MESHSCOPE_RUN_DIR' in os.environ))"
    assert run(python(code), Path(runs.format(tmp_path)), environment=RANK, agent_options=[]) == 7
    said = capfd.readouterr().err
    assert said.startswith("meshscope: the command runs unrecorded: ")
    assert why in said
    assert said.count("\n") == 1


def test_a_disk_that_hangs_at_the_start(tmp_path, capfd, monkeypatch):
    """Fails when a training waits for ever for the disk of its capture before it begins."""
    released = threading.Event()
    monkeypatch.setattr(launch, "_DISK_WAIT_S", 0.1)
    monkeypatch.setattr(launch, "place_of", lambda *_: released.wait(60))
    try:
        assert run(python("import sys; sys.exit(7)"), tmp_path, environment=RANK) == 7
    finally:
        released.set()
    assert "the disk does not answer" in capfd.readouterr().err


def test_an_error_of_our_own_at_the_start(tmp_path, capfd, monkeypatch):
    """Fails when a mistake in the probe keeps a training from its start."""
    monkeypatch.setattr(launch, "place_of", lambda *_: 1 / 0)
    assert run(python("import sys; sys.exit(7)"), tmp_path, environment=RANK) == 7
    assert "runs unrecorded: ZeroDivisionError" in capfd.readouterr().err


def test_a_disabled_probe_touches_nothing(tmp_path, capfd):
    """Fails when the switch that keeps the probe off does not keep the launcher off the disk."""
    variables = {**RANK, "MESHSCOPE_DISABLE": "1", "PYTHONPATH": "/theirs"}
    code = "import os, sys; sys.exit(os.environ['PYTHONPATH'] != '/theirs')"
    assert run(python(code), tmp_path / "runs", environment=variables, agent_options=[]) == 0
    assert not (tmp_path / "runs").exists()
    assert "MESHSCOPE_DISABLE is set: the command runs unrecorded" in capfd.readouterr().err


def test_a_run_that_is_gone_at_the_end(tmp_path, capfd):
    """Fails when a job that succeeded is reported as failed because its capture was deleted."""
    command = ["sh", "-c", 'rm -r "$MESHSCOPE_RUN_DIR"; exit 5']
    assert run(command, tmp_path, "a", environment=RANK) == 5
    assert "what was recorded cannot be read" in capfd.readouterr().err


def test_a_stderr_that_takes_nothing(tmp_path):
    """Fails when a full disk under the log of a job changes its exit code."""
    code = (
        "import sys; from pathlib import Path; from meshscope.probe.launching.launch import run; "
    )
    code += f"sys.exit(run(['true'], Path({str(tmp_path)!r})))"
    with open("/dev/full", "w", encoding="ascii") as full:
        assert subprocess.run(python(code), stderr=full, check=False).returncode == 0


def test_a_job_that_is_started_again_joins_its_run(tmp_path, capfd):
    """Fails when a requeued job does not start, or records over what it did before."""
    assert run(python(TRAIN), tmp_path, "job", environment=RANK) == 0
    kept = {path: path.read_bytes() for path in (tmp_path / "job" / "rank00000").iterdir()}
    assert run(python(TRAIN), tmp_path, "job", environment=RANK) == 0
    assert {path: path.read_bytes() for path in (tmp_path / "job" / "rank00000").iterdir()} == kept
    assert "joins the run of 20" in capfd.readouterr().err
    capture = read_run(tmp_path / "job")
    assert capture.tables["attempt"].num_rows == 2
    assert capture.tables["step"]["step"].to_pylist() == [*range(6)]


def test_launchers_of_two_hosts_record_one_run(tmp_path):
    """Fails when one of two launchers that start together refuses its ranks."""
    code = (
        "import sys; from pathlib import Path; from meshscope.probe.launching.launch import run; "
    )
    code += f"sys.exit(run(sys.argv[1:], Path({str(tmp_path)!r}), 'job'))"
    hosts = [
        subprocess.Popen(
            [*python(code), *python(TRAIN)],
            env={**RANK, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        )
        for rank in range(2)
    ]
    assert [host.wait(60) for host in hosts] == [0, 0]
    capture = read_run(tmp_path / "job")
    assert capture.ranks == (0, 1)
    assert capture.tables["attempt"].num_rows <= 1
    assert capture.manifest["command"][0] == sys.executable


def test_a_misspelt_command_leaves_a_joined_run_alone(tmp_path):
    """Fails when a typing error on one host deletes what the other hosts recorded."""
    assert run(python(TRAIN), tmp_path, "job", environment=RANK) == 0
    assert run(["no-such-program-of-a-test"], tmp_path, "job") == 127
    assert read_run(tmp_path / "job").tables["step"].num_rows == 3


def test_no_command_is_refused(tmp_path):
    """Fails when ``meshscope run`` alone makes an empty run."""
    with pytest.raises(ConfigError, match="no command"):
        run([], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_signals_reach_the_command(tmp_path):
    """Fails when a scheduler's SIGTERM ends the launcher and leaves the job behind."""
    code = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(5))\nopen(sys.argv[1], 'w').close()\nsignal.pause()"
    ready = tmp_path / "ready"
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from meshscope.probe.launching.launch import run; "
            "sys.exit(run(sys.argv[2:], Path(sys.argv[1]), 'a'))",
            str(tmp_path),
            *python(code),
            str(ready),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        while not ready.exists():
            assert launcher.poll() is None
            threading.Event().wait(0.02)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=30) == 5
    finally:
        launcher.kill()
        launcher.wait()


def test_a_signal_for_all_processes_of_the_job_is_not_sent_again(tmp_path):
    """Fails when a scheduler that signals the whole job has the trainer save or end twice."""
    code = textwrap.dedent(
        """
        import signal, sys
        open(sys.argv[1], "w").close()
        while True:
            number = signal.sigwait([signal.SIGUSR1, signal.SIGTERM])
            print(number, flush=True)
            if number == signal.SIGTERM:
                break
        """
    )
    run_it = (
        "import signal, sys; from pathlib import Path\n"
        "from meshscope.probe.launching.launch import run\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])\n"
        "sys.exit(run(sys.argv[2:], Path(sys.argv[1]), 'a'))"
    )
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", run_it, str(tmp_path), *python(code), str(ready)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **pipes, start_new_session=True) as launcher:
        try:
            while not ready.exists():
                assert launcher.poll() is None
                threading.Event().wait(0.02)
            reported = []
            for tell in (os.killpg, os.kill, os.killpg):
                tell(launcher.pid, signal.SIGUSR1)
                reported.append(int(launcher.stdout.readline()))
                threading.Event().wait(0.5)
            launcher.send_signal(signal.SIGTERM)
            rest = [int(line) for line in launcher.stdout]
        finally:
            os.killpg(launcher.pid, signal.SIGKILL)
    assert (reported, rest) == ([signal.SIGUSR1] * 3, [signal.SIGTERM])


def test_the_signal_mask_is_restored(tmp_path):
    """Fails when the caller cannot be interrupted any more."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    code = "import signal, sys; sys.exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    assert run(python(code), tmp_path, "a") == len(before)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
