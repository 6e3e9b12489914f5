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
