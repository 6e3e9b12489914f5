"""The agent beside a job: started, started again, ended."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from meshscope.probe.clock import now_ns
from meshscope.probe.launching import launch
from meshscope.probe.launching.launch import AgentChild, run
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.rundir import create_run

PATIENCE_NS = 30_000_000_000


@pytest.fixture
def environment(tmp_path):
    """Return variables that put the sockets into the folder of the test."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    return {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}


def waits_for(condition):
    """Return whether something became true in good time."""
    end_ns = now_ns() + PATIENCE_NS
    while not condition():
        if now_ns() > end_ns:
            return False
        threading.Event().wait(0.05)
    return True


def test_an_agent_that_is_killed_comes_back(tmp_path, environment, monkeypatch):
    """Fails when kill -9 of the agent ends the sampling of the rest of the job."""
    monkeypatch.setattr(launch, "_PAUSE_NS", 0)
    run_path = create_run(tmp_path, "a", {})
    child = AgentChild(run_path, environment)
    pids = []

    def has_started():
        child.tend()
        for path in run_path.glob("host-*/manifest.json"):
            pid = json.loads(path.read_text())["pid"]
            if pid not in pids:
                pids.append(pid)
                return True
        return False

    assert waits_for(has_started)
    os.kill(pids[0], signal.SIGKILL)
    assert waits_for(has_started)
    child.stop()
    (path,) = run_path.glob("host-*/manifest.json")
    manifest = json.loads(path.read_text())
    assert [before["pid"] for before in manifest["agents_before"]] == [pids[0]]
    assert manifest["closed_unix_ns"] is not None


def test_an_agent_that_is_ended_before_it_listens_ends_in_order(tmp_path, environment):
    """Fails when SIGTERM during the start of an agent leaves a directory that was not closed."""
    run_path = create_run(tmp_path, "a", {})

    def asked_to_end():
        # Pending signals survive the start of another program.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.kill(os.getpid(), signal.SIGTERM)

    ended = subprocess.run(
        [sys.executable, "-m", "meshscope", "agent", "--run", str(run_path)],
        env=environment,
        preexec_fn=asked_to_end,
        timeout=PATIENCE_NS / 1e9,
        check=False,
    )
    assert ended.returncode == 0
    (path,) = run_path.glob("host-*/manifest.json")
    assert json.loads(path.read_text())["closed_unix_ns"] is not None


def test_an_agent_that_cannot_work_is_not_started_again(tmp_path, environment):
    """Fails when an agent that refuses is started over and over."""
    child = AgentChild(tmp_path / "no-run", environment)

    def has_given_up():
        child.tend()
        return child._starts_left == 0 and child._process is None

    assert waits_for(has_given_up)


def test_a_disabled_probe_has_no_agent(tmp_path, environment):
    """Fails when MESHSCOPE_DISABLE leaves the agent running."""
    child = AgentChild(tmp_path, {**environment, "MESHSCOPE_DISABLE": "1"})
    child.tend()
    assert child._process is None


def test_the_launcher_samples_its_node(tmp_path, environment, capfd):
    """Fails when `meshscope run` leaves no samples, or waits for an agent at the end."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "end = time.monotonic() + 30\n"
        "while not list(Path(sys.argv[1]).glob('a/host-*/seg*')) and time.monotonic() < end:\n"
        "    time.sleep(0.05)\n"
        "sys.exit(3)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert run(command, tmp_path, "a", environment=environment, agent_options=()) == 3
    capture = read_run(tmp_path / "a")
    assert capture.tables["host_sample"].num_rows >= 1


def test_two_runs_on_one_node(tmp_path, environment):
    """Fails when the agent of a second run refuses, or writes into the first."""
    paths = [create_run(tmp_path, name, {}) for name in ("a", "b")]
    children = [AgentChild(path, environment) for path in paths]

    def both_write():
        for child in children:
            child.tend()
        return all(list(path.glob("host-*/seg-*")) for path in paths)

    assert waits_for(both_write)
    for child in children:
        child.stop()
    manifests = [json.loads(next(p.glob("host-*/manifest.json")).read_text()) for p in paths]
    assert manifests[0]["pid"] != manifests[1]["pid"]
    assert [m["agents_before"] for m in manifests] == [[], []]


def test_an_agent_that_the_system_refuses_is_reported_once(
    tmp_path, environment, monkeypatch, capfd
):
    """Fails when nobody learns why devices and deep traces are missing, or a job hears it six times."""
    monkeypatch.setattr(launch, "_PAUSE_NS", 0)

    def refused(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)
    child = AgentChild(tmp_path, environment)
    for _ in range(3):
        child.tend()
    reported = "meshscope: the node agent cannot be started: Resource temporarily unavailable\n"
    assert capfd.readouterr().err == reported
