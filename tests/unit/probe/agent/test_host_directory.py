"""The directory of a host: who may write to it, what survives, who was there before."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace

import pytest

from meshscope.probe.agent import host_directory
from meshscope.probe.agent.host_directory import AgentRunningError, HostDirectory
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.rundir import create_run

ROW = {"time_ns": 5, "cpus": 2, "load_1m": 0.5}


def manifest_of(directory):
    """Return the manifest as it is on disk."""
    return json.loads((directory.path / "manifest.json").read_text())


def test_rows_come_back_as_they_went(run_path, bounds):
    """Fails when a sample is lost or changed between agent and analysis."""
    directory = HostDirectory(run_path, bounds)
    device = {"uuid": "GPU-a", "time_ns": 7, "power_w": 300.0, "remap_pending": True}
    directory.add({"host_sample": [ROW], "device_sample": [device]})
    directory.flush()
    directory.add({"host_sample": [{**ROW, "time_ns": 6}]})
    directory.close()
    tables = read_run(run_path).tables
    assert tables["host_sample"]["time_ns"].to_pylist() == [5, 6]
    (row,) = tables["device_sample"].to_pylist()
    assert {k: v for k, v in row.items() if v is not None} == device | {"host": os.uname().nodename}


def test_one_agent_a_node_and_run(run_path, bounds, tmp_path):
    """Fails when two agents sample a node for one run, or a second run is refused."""
    first = HostDirectory(run_path, bounds)
    with pytest.raises(AgentRunningError, match=f"process {os.getpid()}"):
        HostDirectory(run_path, bounds)
    other = HostDirectory(create_run(tmp_path, "run-2", {}), bounds)
    other.close()
    first.close()
    HostDirectory(run_path, bounds).close()


def test_two_machines_of_one_name(run_path, bounds, monkeypatch):
    """Fails when the second of two nodes called localhost is not sampled."""
    first = HostDirectory(run_path, bounds)
    monkeypatch.setattr(host_directory, "boot_id", lambda: "12345678-other")
    second = HostDirectory(run_path, bounds)
    assert second.path.name == first.path.name + "-12345678"
    first.close()
    second.close()


def test_an_agent_that_was_killed_is_followed_by_another(run_path, bounds):
    """Fails when kill -9 loses what was flushed, keeps the lock, or is forgotten."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from meshscope.probe.agent.host_directory import HostDirectory\n"
        "from meshscope.probe.agent.settings import AgentSettings\n"
        "d = HostDirectory(Path(sys.argv[1]), AgentSettings().bounds)\n"
        "d.add({'host_sample': [{'time_ns': 1}]}); d.count('things', 3); d.flush()\n"
        "d.state({}); d.flush(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run_path)], check=False)
    assert done.returncode == -9
    after = HostDirectory(run_path, bounds)
    after.add({"host_sample": [{"time_ns": 2}]})
    after.close()
    assert read_run(run_path).tables["host_sample"]["time_ns"].to_pylist() == [1, 2]
    (before,) = manifest_of(after)["agents_before"]
    assert before["counters"] == {"things": 3}
    assert before["closed_unix_ns"] is None
    assert manifest_of(after)["closed_unix_ns"] is not None


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_directory_that_is_not_ours_alone_is_refused(run_path, bounds, tmp_path, kind):
    """Fails when somebody else can have the agent write where he likes, or read along."""
    place = run_path / f"host-{os.uname().nodename}"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    elif kind == "open":
        place.mkdir(mode=0o700)
        place.chmod(0o755)
    else:
        place.write_text("")
    with pytest.raises((ConfigError, OSError)):
        HostDirectory(run_path, bounds)
    assert not list((tmp_path / "elsewhere").glob("*")) if kind == "link" else True


def test_a_link_in_place_of_the_lock_is_refused(run_path, bounds, tmp_path):
    """Fails when a planted link makes the agent cut another file short."""
    target = tmp_path / "precious"
    target.write_text("content")
    place = run_path / f"host-{os.uname().nodename}"
    place.mkdir(mode=0o700)
    (place / "agent.lock").symlink_to(target)
    with pytest.raises(OSError, match=r"agent\.lock"):
        HostDirectory(run_path, bounds)
    assert target.read_text() == "content"


def test_another_format_version_is_left_alone(run_path, bounds):
    """Fails when an agent writes into a capture that it does not understand."""
    directory = HostDirectory(run_path, bounds)
    directory.close()
    path = directory.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 999}))
    with pytest.raises(MeshscopeError, match="another version"):
        HostDirectory(run_path, bounds)


def test_a_row_that_does_not_fit_is_counted(run_path, bounds):
    """Fails when one odd value ends the agent or passes in silence."""
    directory = HostDirectory(run_path, bounds)
    directory.add({"host_sample": [{"time_ns": "now"}]})
    directory.flush()
    directory.add({"host_sample": [ROW]})
    directory.close()
    assert manifest_of(directory)["counters"] == {"row_errors": 1}
    assert read_run(run_path).tables["host_sample"].num_rows == 1


def test_rows_that_cannot_be_written_are_bounded(run_path, bounds, monkeypatch):
    """Fails when a disk that takes nothing lets the agent grow."""
    monkeypatch.setattr(host_directory, "_MOST_ROWS", 10)
    directory = HostDirectory(run_path, bounds)
    directory.add({"host_sample": [{"time_ns": n} for n in range(25)]})
    directory.close()
    assert manifest_of(directory)["counters"] == {"rows_dropped": 15}
    assert read_run(run_path).tables["host_sample"]["time_ns"].to_pylist() == list(range(15, 25))


def test_what_is_missing_adds_up_by_reader(run_path, bounds):
    """Fails when nobody can tell why a column is empty."""
    directory = HostDirectory(run_path, bounds)
    directory.note_missing("devices", {"power_w: not supported": 8})
    directory.note_missing("devices", {"power_w: not supported": 8, "clock_hz: device lost": 1})
    directory.close()
    assert manifest_of(directory)["missing"] == {
        "devices": {"power_w: not supported": 16, "clock_hz: device lost": 1}
    }


def test_a_full_disk_is_counted_and_outlived(run_path, bounds):
    """Fails when writes that the system refuses end the agent, or the samples after them."""
    directory = HostDirectory(run_path, bounds)
    directory.add({"host_sample": [ROW]})
    directory.flush()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        directory.add({"host_sample": [ROW]})
        directory.state({"ports": []})
        directory.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    directory.add({"host_sample": [{**ROW, "time_ns": 9}]})
    directory.close()
    counters = manifest_of(directory)["counters"]
    assert counters["segment_write_dropped"] == 1
    assert counters["manifest_write_errors"] == 1
    assert read_run(run_path).tables["host_sample"]["time_ns"].to_pylist() == [5, 9]


def test_below_the_floor_of_free_space_nothing_is_stored(run_path, bounds):
    """Fails when the agent takes the disk that training needs for its checkpoints."""
    directory = HostDirectory(run_path, replace(bounds, free_floor_frac=1.1))
    directory.add({"host_sample": [ROW, ROW]})
    directory.close()
    assert manifest_of(directory)["counters"] == {"disk_floor_dropped": 2}
    assert not list(directory.path.glob("seg-*"))


def test_a_run_that_cannot_be_written(run_path, bounds):
    """Fails when a read-only run is a traceback, or leaves something half made."""
    if os.geteuid() == 0:
        pytest.skip("needs a user whom permissions hold back: this is root")
    run_path.chmod(0o500)
    try:
        with pytest.raises(OSError, match=r"host-"):
            HostDirectory(run_path, bounds)
    finally:
        run_path.chmod(0o700)


def test_facts_do_not_replace_what_the_agent_knows(run_path, bounds):
    """Fails when a recording from elsewhere changes the format version or the host."""
    directory = HostDirectory(run_path, bounds)
    directory.state({"host": "elsewhere", "format_version": 99, "devices": []})
    directory.close()
    assert manifest_of(directory)["host"] == os.uname().nodename
    assert manifest_of(directory)["format_version"] != 99
