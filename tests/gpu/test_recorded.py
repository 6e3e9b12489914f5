"""What an H200 left behind is read on any machine: counters of the driver, and a deep trace.

Both files come from the standalone checks: the counters of a quiet, a busy and again a
quiet device, and a trace by Kineto's client of three steps of a job that sleeps 5 ms in each.
"""

from pathlib import Path

import pytest

from meshscope.analyze import diagnose, load_trace
from meshscope.probe.agent.readings import ReplayEnded
from meshscope.probe.agent.recording import ReplayReader

DATA = Path(__file__).parents[1] / "data" / "gpu"
STEPS = 3
PAUSE_MS = 5.0


@pytest.fixture(scope="module")
def samples():
    """Return the samples of the device, in order."""
    reader = ReplayReader(DATA / "nvml-h200.jsonl.gz", "devices")
    found = []
    try:
        while True:
            found += reader.read().rows["device_sample"]
    except ReplayEnded:
        return found
    finally:
        reader.close()


def test_a_busy_device_is_distinguished_from_a_quiet_one(samples):
    """Fails when counters of a real driver are lost, or idle and load look alike."""
    busy = [own for own in samples if own.get("sm_active_frac", 0) > 0.9]
    quiet = [own for own in samples if own.get("sm_active_frac") == 0]
    assert len(busy) > 5
    assert len(quiet) > 5
    assert min(own["power_w"] for own in busy) > 3 * max(own["power_w"] for own in quiet[:5])
    assert all(0.9 < own["tensor_active_frac"] <= 1 for own in busy)


def test_energy_is_power_over_time(samples):
    """Fails when the counter of energy is read in another unit, or another device's."""
    busy = [own for own in samples if own.get("sm_active_frac", 0) > 0.9]
    first, last = busy[0], busy[-1]
    seconds = (last["time_ns"] - first["time_ns"]) / 1e9
    mean_w = sum(own["power_w"] for own in busy) / len(busy)
    assert (last["energy_j"] - first["energy_j"]) / seconds == pytest.approx(mean_w, rel=0.1)


def test_the_pause_of_the_host_is_found_in_a_real_trace():
    """Fails when a trace of a real GPU is misread, or its idle time gets another cause."""
    result = diagnose(load_trace(DATA / "kineto-h200.json.gz"))
    stall = result.findings[0]
    assert stall.kind == "host_stall"
    assert stall.cost_frac * result.step_time_ns / 1e6 >= PAUSE_MS
    assert any("Nothing was recorded of the host there" in str(line) for line in stall.evidence)
