"""What the driver of a real device tells the agent, and how long it takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from meshscope.probe.agent.devices import DeviceReader
from meshscope.probe.clock import now_ns
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.rundir import create_run

pytestmark = [pytest.mark.gpu]

READINGS = 10
ALWAYS = ("mem_used_bytes", "sm_util_frac", "power_w", "clock_hz", "temperature_c", "throttle_mask")


def test_the_fields_of_a_device_and_their_latency(capsys):
    """Fails when a field that every data centre device has is not read from a real one."""
    reader = DeviceReader()
    facts = reader.read().facts
    times = []
    for _ in range(READINGS):
        begin_ns = now_ns()
        reading = reader.read()
        times.append((now_ns() - begin_ns) / 1e6)
    reader.close()
    with capsys.disabled():
        print(f"\n{facts['devices']}\nmissing: {reading.missing}")
        print(f"a reading takes {min(times):.2f} to {max(times):.2f} ms")
    row = reading.rows["device_sample"][0]
    assert not [name for name in ALWAYS if name not in row]
    assert facts["devices"][0]["uuid"].startswith("GPU-")
    assert row["mem_used_bytes"] <= facts["devices"][0]["mem_total_bytes"]


def test_a_process_is_brought_to_its_device(tmp_path: Path):
    """Fails when torch's name of a device and the driver's do not meet."""
    run_path = create_run(tmp_path, "run", {"world_size": 1})
    code = (
        "import sys, torch, time; from pathlib import Path\n"
        "from meshscope.probe.compat.torch_names import cuda_device; from meshscope.probe.recording.recorder import Recorder\n"
        "torch.ones(1, device='cuda'); Recorder(Path(sys.argv[1]), 0, device_uuid=cuda_device().uuid)"
    )
    subprocess.run([sys.executable, "-c", code, str(run_path)], check=True, timeout=120)
    agent = [sys.executable, "-m", "meshscope", "agent", "--run", str(run_path), "--duration", "6"]
    subprocess.run(agent, check=True, timeout=120)
    rows = read_run(run_path).tables["rank_device"].to_pylist()
    assert [(row["rank"], row["evidence"]) for row in rows] == [(0, "evidence.device_stated")]
