"""The benchmark of scale measures what the analysis is now."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_smallest_job_of_the_benchmark_of_scale(project_dir):
    """Fails when the benchmark no longer fits the analysis that it measures."""
    done = subprocess.run(
        [sys.executable, project_dir / "bench" / "scale.py", "128"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "['straggler_rank', \"{'rank': 5}\"" in done.stdout
