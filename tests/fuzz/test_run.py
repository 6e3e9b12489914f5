"""The fuzz harness of all formats runs for a few seconds and finds nothing."""

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="needs atheris (the extra fuzz)"
)


def test_the_readers_stand_a_few_seconds(project_dir, tmp_path):
    """A reader would raise something that is no error of ours, hang, or take 2 GB."""
    options = ["--seconds", "5", "--formats", "any", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", *options],
        cwd=project_dir, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nothing found" in done.stdout
