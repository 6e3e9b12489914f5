"""Samples of hosts on the clocks of their ranks."""

import json

import pyarrow as pa
import pytest

from meshscope.analyze.align.clocks.fit import ClockMap
from meshscope.analyze.align.clocks.host_samples import moved_samples, named_as_clocks
from meshscope.analyze.load.kept_tables import capture_key, keep, read_kept
from meshscope.analyze.load.load import load_trace
from meshscope.probe.agent.host_directory import HostDirectory
from meshscope.probe.agent.settings import AgentSettings
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.host_tables import HOST_SAMPLE
from meshscope.probe.schema.rundir import create_run


def samples(*hosts):
    """Return one sample a host."""
    rows = [{"host": host, "time_ns": 100 * (at + 1)} for at, host in enumerate(hosts)]
    return {"host_sample": HOST_SAMPLE.conform(pa.Table.from_pylist(rows))}


def test_a_host_is_called_as_the_clock_of_its_ranks():
    """Fails when ranks in containers with names of their own are not brought to their node."""
    found = named_as_clocks(
        samples("node", "other"),
        {"node": {"boot_id": "b1"}, "other": {"boot_id": "b2"}},
        {0: {"boot_id": "b1"}, 1: {"boot_id": None}},
        {0: "container-7", 1: "rank 1"},
    )
    assert found["host_sample"]["host"].to_pylist() == ["container-7", "other"]


def test_samples_move_with_their_clock():
    """Fails when samples stay behind when the times of their ranks are corrected."""
    maps = {"b": ClockMap(0, 1000.0, 0.0, 1.0)}
    found = moved_samples(samples("a", "b"), maps)
    assert found["host_sample"]["time_ns"].to_pylist() == [100, 1200]
    assert moved_samples(samples("a"), maps) == {}
    assert moved_samples({}, maps) == {}


@pytest.fixture
def run_path(tmp_path):
    """Return a closed run of two ranks on sampled devices."""
    path = create_run(tmp_path, "run", {"world_size": 2})
    for rank in range(2):
        asleep = StorageSettings(wake_s=3600.0, free_floor_frac=0.0)
        recorder = Recorder(path, rank, device_uuid=f"{rank}0", settings=asleep)
        for step in range(3):
            recorder.record_step(step, step * 1000, 1000)
        recorder.close()
    host = HostDirectory(path, AgentSettings().bounds)
    host.state({"devices": [{"uuid": f"GPU-{rank}0", "name": "H100"} for rank in range(2)]})
    samples = [{"uuid": f"GPU-{r}0", "time_ns": 1000 * at} for r in range(2) for at in range(3)]
    host.add({"device_sample": samples})
    host.close()
    return path


def test_ranks_and_devices_meet_in_a_trace(run_path):
    """Fails when samples are recorded but no analysis can tell whose they are."""
    trace = load_trace(run_path)
    joined = trace.frame("rank_device")
    assert list(zip(joined["rank"], joined["uuid"], strict=True)) == [(0, "GPU-00"), (1, "GPU-10")]
    assert set(joined["host"]) == {trace.clock_of(0)}
    assert len(trace.frame("device_sample")) == 6


def test_kept_tables_hold_the_samples_and_notice_new_ones(run_path):
    """Fails when a run that was opened before shows no samples, or old ones."""
    trace = load_trace(run_path)
    key = capture_key(run_path)
    assert keep(trace)
    assert len(read_kept(run_path).frame("device_sample")) == 6
    (manifest,) = run_path.glob("host-*/manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "devices": []}))
    assert capture_key(run_path) != key
    assert read_kept(run_path) is None
