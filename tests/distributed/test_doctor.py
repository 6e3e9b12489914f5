"""``meshscope doctor --overhead`` on a job of two ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshscope.probe.reader.run import read_run
from meshscope.probe.session.comparison import is_watched

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

WINDOW = 4
TRAIN = """
import sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(sys.argv[1])):
    model(torch.ones(8, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.sampled(keep=())
def test_a_job_compares_itself_with_and_without(tmp_path: Path):
    """Fails when ranks switch at different steps, or the result lacks what makes it honest."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    doctor = [sys.executable, "-m", "meshscope", "doctor", "--overhead", "--format", "json"]
    options = ["--runs", str(tmp_path / "runs"), "--window-steps", str(WINDOW)]
    command = [*doctor, *options, "--", *launch, str(script), "80"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    found = json.loads(done.stdout)
    assert found["pairs"] == 80 // (2 * WINDOW) - 1
    assert found["low_frac"] <= found["median_frac"] <= found["high_frac"]
    assert found["detectable_frac"] > 0
    assert (found["ranks"], found["window_steps"]) == (2, WINDOW)
    assert found["rss_bytes"] > 0
    run = read_run(Path(found["run"]))
    name = Path(found["run"]).name
    watched = {step for step in range(1, 80) if is_watched(name, step, WINDOW)}
    rows = run.tables["collective"].to_pandas()
    for rank in range(2):
        assert set(rows[rows["rank"] == rank]["step"]) - {0} == watched
    assert set(run.tables["step"].to_pandas()["step"]) == set(range(80))
