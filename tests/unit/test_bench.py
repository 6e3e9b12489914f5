"""The benchmarks measure what the code is now."""

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


_LOAD_ALL = """
import runpy, sys
sys.path[0] = sys.argv[1]
for path in sys.argv[2:]:
    assert "main" in runpy.run_path(path), f"{path} is no program"
"""


@pytest.mark.slow
def test_every_benchmark_is_a_program_of_its_own(project_dir, tmp_path):
    """`make bench` would fail for a file that finds what it imports in tests only, or measures nothing."""
    folder = project_dir / "bench"
    files = sorted(map(str, folder.glob("*.py")))
    done = subprocess.run(
        [sys.executable, "-c", _LOAD_ALL, str(folder), *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.sampled(keep=())
@pytest.mark.slow
def test_the_smallest_job_of_the_benchmark_of_summaries(project_dir):
    """The figures of many ranks would be those of a run whose slow rank nobody found."""
    done = subprocess.run(
        [sys.executable, project_dir / "bench" / "summaries.py", "32", "64", "--steps", "12"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "true: rank 21 since step 3" in done.stdout
    assert "reported: rank 21 since step 3" in done.stdout
    assert "extrapolated, not measured" in done.stdout
