"""A trainer whose mesh nobody states, under ``meshscope run``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshscope.analyze.bubble import schedule_of
from meshscope.analyze.opening.load import load_trace

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("handwritten_mesh_job.py")
STEPS = 4


def test_mesh_schedule_and_microbatches_are_inferred(tmp_path):
    """Fails when a trainer without framework or names has no stages, replicas or microbatches."""
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "meshscope",
                "run",
                "--runs",
                tmp_path,
                "--run-id",
                "run",
                "--",
            ),
            *(
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                "8",
            ),
            *(SCRIPT, "--sizes", "2", "2", "2", "--steps", str(STEPS)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )
    trace = load_trace(tmp_path / "run")
    layout = trace.layout
    assert layout is not None, trace.limits
    assert [layout.coordinates(rank) for rank in (1, 2, 4)] == [
        {"pp": 0, "dp": 0, "cp": 0, "tp": 1},
        {"pp": 0, "dp": 1, "cp": 0, "tp": 0},
        {"pp": 1, "dp": 0, "cp": 0, "tp": 0},
    ]
    assert schedule_of(trace) == "1f1b"
    spans = trace.frame("span")
    assert set(trace.frame("p2p")["axis"].astype(str)) == {"pp"}
    for rank in trace.ranks:
        for kind in ("forward", "backward"):
            own = spans[(spans["rank"] == rank) & (spans["kind"] == kind) & (spans["step"] == 2)]
            assert own.sort_values("start_ns")["microbatch"].tolist() == [0, 1, 2, 3]
