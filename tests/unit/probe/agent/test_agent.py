"""The agent as a whole: what it writes, shows, and when it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from meshscope.analyze.load.recorded import worded
from meshscope.analyze.wording.limits import limit_texts
from meshscope.probe.agent import agent as agent_module
from meshscope.probe.agent.agent import Agent
from meshscope.probe.agent.settings import AgentSettings
from meshscope.probe.control.client import ask as ask_socket
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.rundir import create_run

QUICK = {"interval_s": 0.1, "flush_s": 0.2}


@pytest.fixture(autouse=True)
def _sockets(tmp_path, monkeypatch):
    """Put the sockets of agents into the folder of the test."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


def run_agent(run_path, sysfs, beside=None, **settings):
    """Run an agent to its end; a function that gets the agent runs in a thread beside it."""
    agent = Agent(run_path, AgentSettings(**QUICK | {"sysfs": sysfs} | settings))
    thread = threading.Thread(target=beside or (lambda _: None), args=(agent,))
    thread.start()
    try:
        agent.run()
    finally:
        thread.join()
        agent.close()
    return agent


def sampled(table, seconds=1.0):
    """Return what waits until a table has rows, then some time, and ends the agent."""

    def beside(agent):
        for _ in range(600):
            if table in agent.status()["sources"]:
                break
            threading.Event().wait(0.05)
        threading.Event().wait(seconds)
        os.kill(os.getpid(), signal.SIGTERM)

    return beside


def manifest_of(run_path):
    """Return the manifest of the one host of a run."""
    (path,) = run_path.glob("host-*/manifest.json")
    return json.loads(path.read_text())


def test_a_node_is_sampled(run_path, scenario, sysfs):
    """Fails when samples of devices, ports or the host do not reach the tables."""
    scenario.add("set 3 throttle 8", "error 2 nvmlDeviceGetPowerUsage 3", "set 0 pid 7")
    run_agent(run_path, sysfs, sampled("device_sample"), duration_s=90.0)
    capture = read_run(run_path)
    tables = capture.tables
    assert set(tables["device_sample"]["uuid"].unique().to_pylist()) == {
        f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(8)
    }
    assert tables["device"].num_rows == 8
    assert set(tables["link_sample"]["port"].unique().to_pylist()) == {"mlx5_0/1", "eth0"}
    assert tables["host_sample"].num_rows >= 5
    assert tables["device_process"]["pid"].to_pylist()[0] == 7
    throttled = [row for row in tables["device_sample"].to_pylist() if row["throttle_mask"]]
    assert {row["uuid"][-1] for row in throttled} == {"3"}
    manifest = manifest_of(run_path)
    assert manifest["missing"]["devices"]["power_w: not supported"] >= 1
    assert manifest["closed_unix_ns"] is not None
    assert not [limit for limit in limit_texts(worded(capture.limits)) if "host" in limit]
    assert all(path.stat().st_mode & 0o077 == 0 for path in run_path.glob("host-*/*"))


def test_a_fault_can_be_scraped(run_path, scenario, sysfs):
    """Fails when nobody is alerted of a device that died before the run is diagnosed."""
    seen = {}

    def beside(agent):
        for _ in range(600):
            if "device_sample" in agent.status()["sources"]:
                scenario.add("event 2 79")
                break
            threading.Event().wait(0.05)
        for _ in range(600):
            if "device_event" in agent.status()["sources"]:
                break
            threading.Event().wait(0.05)
        seen["text"] = agent.metrics()
        os.kill(os.getpid(), signal.SIGTERM)

    run_agent(run_path, sysfs, beside)
    assert (
        'faults_total{uuid="GPU-00000000-0000-0000-0000-000000000002",kind="xid",code="79"} 1'
        in (seen["text"])
    )


def test_a_driver_that_hangs_delays_nothing_else(run_path, scenario, sysfs):
    """Fails when host and ports wait for a driver call that never returns."""
    scenario.add("hang * nvmlInitWithFlags")
    run_agent(run_path, sysfs, sampled("link_sample"), duration_s=90.0, reader_timeout_s=20.0)
    tables = read_run(run_path).tables
    assert tables["host_sample"].num_rows >= 5
    assert tables["link_sample"].num_rows >= 5
    assert "device_sample" not in tables


def test_status_burst_and_metrics(run_path, sysfs):
    """Fails when an agent cannot be asked, a burst is no faster, or nothing can be scraped."""
    seen = {}

    def beside(agent):
        path = Path(agent.sockets["control_socket"])
        seen["burst"] = ask_socket(path, "burst", {"seconds": 60})
        threading.Event().wait(1.0)
        seen["status"] = ask_socket(path, "status", {})
        seen["refused"] = ask_socket(path, "burst", {"seconds": 10**6})
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(agent.sockets["metrics_socket"])
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            seen["text"] = connection.makefile("rb").read()
        os.kill(os.getpid(), signal.SIGTERM)

    run_agent(run_path, sysfs, beside, interval_s=30.0, duration_s=90.0)
    assert seen["burst"].ok
    assert seen["status"].result["is_bursting"]
    assert not seen["refused"].ok
    assert b"\nmeshscope_host_mem_total_bytes " in seen["text"]
    assert read_run(run_path).tables["host_sample"].num_rows >= 5
    manifest = manifest_of(run_path)
    assert manifest["closed_unix_ns"] is not None
    assert [r["verb"] for r in manifest["control_requests"]] == ["burst", "status", "burst"]


def test_no_sockets_where_none_are_wanted(run_path, sysfs, monkeypatch):
    """Fails when the variable that keeps sockets away is not heard by the agent."""
    monkeypatch.setenv("MESHSCOPE_CONTROL", "0")
    agent = run_agent(run_path, sysfs, duration_s=0.1)
    assert agent.sockets == {"sockets_missing": "MESHSCOPE_CONTROL is 0"}
    assert not list((run_path.parent / "runtime").rglob("*.sock"))


def test_a_disable_file_ends_it(run_path, sysfs):
    """Fails when the kill switch of a run leaves its agents running."""
    (run_path / "disable").touch()
    run_agent(run_path, sysfs, duration_s=60.0)
    manifest = manifest_of(run_path)
    assert manifest["closed_unix_ns"] - manifest["started_unix_ns"] < 30e9


def test_without_a_launcher_it_lives_as_long_as_a_rank(run_path, sysfs, monkeypatch):
    """Fails when the agent ends while a rank of a killed launcher runs on, or never."""
    monkeypatch.setattr(agent_module, "_LOOK_NS", 50_000_000)
    code = (
        "import sys, time; from pathlib import Path; from meshscope.probe.recording.recorder import Recorder\n"
        "Recorder(Path(sys.argv[1]), 0); print('ready', flush=True); time.sleep(60)"
    )
    rank = subprocess.Popen([sys.executable, "-c", code, str(run_path)], stdout=subprocess.PIPE)
    rank.stdout.readline()
    lived = []

    def beside(agent):
        threading.Event().wait(1.0)
        lived.append(not agent._ended)
        rank.kill()
        rank.wait()

    run_agent(run_path, sysfs, beside, grace_s=0.2, launcher_pid=1 << 22, duration_s=30.0)
    rank.stdout.close()
    assert lived == [True]
    first, last = manifest_of(run_path)["started_unix_ns"], manifest_of(run_path)["closed_unix_ns"]
    assert last - first < 20e9


def test_a_recording_replayed_gives_the_same_tables(run_path, tmp_path, scenario, sysfs):
    """Fails when a recording from a real machine does not stand in for it."""
    file = tmp_path / "readings.gz"
    recorder = Agent(
        run_path,
        AgentSettings(**QUICK, sysfs=sysfs, duration_s=90.0),
        record=file,
    )
    thread = threading.Thread(target=sampled("device_sample", 0.5), args=(recorder,))
    thread.start()
    recorder.run()
    thread.join()
    recorder.close()
    again = create_run(tmp_path, "run-2", {"world_size": 2})
    replayer = Agent(again, AgentSettings(), replay=file)
    replayer.run()
    replayer.close()
    first, second = read_run(run_path).tables, read_run(again).tables
    for name in ("device", "device_sample", "link_sample", "host_sample"):
        assert second[name].num_rows > 0
        assert second[name].to_pylist() == first[name].to_pylist(), name


def test_settings_that_cannot_be_are_refused():
    """Fails when an interval of nothing makes a busy loop, or a time of none an agent without end."""
    for bad, name in (
        ({"interval_s": 0.0}, "interval"),
        ({"burst_interval_s": -1.0}, "burst_interval"),
        ({"interval_s": float("nan")}, "interval"),
        ({"interval_s": float("inf")}, "interval"),
        ({"duration_s": float("nan")}, "duration"),
        ({"trace_steps": 0}, "trace_steps"),
    ):
        with pytest.raises(ConfigError, match=f"^{name}: must be a number of at least"):
            AgentSettings(**bad)


def test_a_port_that_is_taken_leaves_nothing_behind(run_path, sysfs):
    """Fails when an agent that could not start keeps the lock."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot be served"):
            Agent(run_path, AgentSettings(port=taken.getsockname()[1], sysfs=sysfs))
    run_agent(run_path, sysfs, duration_s=0.1)
