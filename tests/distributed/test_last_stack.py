"""Where ranks stand when others give up waiting for them, with real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.distributed import late_to_barrier_job

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace

pytestmark = pytest.mark.distributed

CRASH = """import ctypes, os, signal
import torch
import torch.distributed as dist

def read_sample(step):
    if step == 3 and dist.get_rank() == 1:
        ctypes.string_at(0)

dist.init_process_group("gloo")
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1)
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGSEGV)
os.waitpid(child, 0)
for step in range(5):
    dist.all_reduce(torch.ones(4))
    read_sample(step)
    optimizer.step()
"""


def test_a_crash_in_native_code_has_a_line(tmp_path):
    """Fails when a rank that SIGSEGV ends has no line, or a child of it is taken for it."""
    program = tmp_path / "crash.py"
    program.write_text(CRASH)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    subprocess.run(
        [
            *(sys.executable, "-m", "meshscope", "run", "--no-agent", "--runs", str(tmp_path)),
            *("--run-id", "job", "--", *launch, str(program)),
        ],
        capture_output=True,
        timeout=120,
        check=False,
    )
    first = diagnose(load_trace(tmp_path / "job")).findings[0]
    assert (first.kind, first.where["ranks"]) == ("crash", [1])
    said = next(str(fact) for fact in first.evidence if "when the signal came" in str(fact))
    assert "Rank 1, when the signal came: in string_at" in said
    assert "read_sample (crash.py:7)" in said


@pytest.mark.parametrize("level", ["collectives", "steps"])
def test_who_is_waited_for_is_named_with_its_line(tmp_path, level):
    """Fails when the rank whose wait timed out first is blamed, or nobody knows what the late one did."""
    ranks = ["--standalone", "--nproc-per-node", "3", "--monitor-interval", "2"]
    subprocess.run(
        [
            *(sys.executable, "-m", "meshscope", "run", "--no-agent", "--runs", str(tmp_path)),
            *("--run-id", "job", "--", sys.executable, "-m", "torch.distributed.run", *ranks),
            str(Path(late_to_barrier_job.__file__)),
        ],
        env=os.environ | {"MESHSCOPE_COST_BUDGET_PPM": "0", "MESHSCOPE_LEVEL": level},
        capture_output=True,
        timeout=120,
        check=False,
    )
    first = diagnose(load_trace(tmp_path / "job")).findings[0]
    assert (first.kind, first.where["ranks"]) == ("hang", [late_to_barrier_job.LATE])
    assert any("load_shard (late_to_barrier_job.py:" in str(fact) for fact in first.evidence)
