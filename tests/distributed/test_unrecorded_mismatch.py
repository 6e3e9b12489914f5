"""Members that differ in a step of which the probe records its length only, with real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.distributed import unrecorded_mismatch_job

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.sampling import is_recorded
from meshscope.probe.session.sample_order import SAMPLING_FILE

pytestmark = pytest.mark.distributed


def test_who_differs_in_a_step_that_is_not_recorded_is_named(tmp_path):
    """Fails when a rank that gloo aborts, or that its launcher ends a moment later, is told as the cause."""
    assert not is_recorded(unrecorded_mismatch_job.LAST, 2)
    run = create_run(tmp_path / "runs", "job", {})
    (run / SAMPLING_FILE).write_text(json.dumps({"one_in": 2, "first_step": 5}), "utf-8")
    # By default it ends the others after 0.05 to 0.1 s, in which ranks of a crowded machine may not get to note anything.
    ranks = ["--standalone", "--nproc-per-node", "4", "--monitor-interval", "2"]
    subprocess.run(
        [
            *(sys.executable, "-m", "meshscope", "run", "--no-agent", "--runs", str(run.parent)),
            *("--run-id", run.name, "--", sys.executable, "-m", "torch.distributed.run", *ranks),
            str(Path(unrecorded_mismatch_job.__file__)),
        ],
        env=os.environ | {"MESHSCOPE_COST_BUDGET_PPM": "1000000"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    trace = load_trace(run)
    assert unrecorded_mismatch_job.LAST not in set(trace.frame("collective")["step"])
    first = diagnose(trace).findings[0]
    assert (first.cause, first.where["ranks"]) == ("mismatch_size", [unrecorded_mismatch_job.ODD])
    said = " ".join(map(str, first.evidence))
    assert "8,000 bytes" in said
    lines = Path(unrecorded_mismatch_job.__file__).read_text("utf-8").splitlines()
    line = 1 + next(at for at, text in enumerate(lines) if "2000 if" in text)
    assert f"unrecorded_mismatch_job.py:{line}" in said
