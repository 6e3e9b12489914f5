"""The plugin in a pytest of its own: the example of the documentation, and settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.distributed

JOB_VARIABLES = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS")


def run_pytest(folder, *words):
    """Run pytest with the plugin, and with no other that it was not told of."""
    environment = {key: text for key, text in os.environ.items() if key not in JOB_VARIABLES}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "meshscope.pytest_plugin", *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.sampled(keep=())
def test_the_documented_example_runs_beside_itself(project_dir, tmp_path):
    """The example would not work as it is printed, or jobs of two workers would meet."""
    page = (project_dir / "docs" / "pytest.md").read_text(encoding="utf-8")
    files = re.findall(r"```python\n(# (\S+)\n.*?)```", page, re.DOTALL)
    assert [name for _, name in files] == ["train.py", "test_train.py"]
    for text, name in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmeshscope_runs = kept\nmeshscope_timeout = 300\n"
    )
    done = run_pytest(tmp_path, "-p", "xdist", "-n", "2", "--junit-xml", tmp_path / "tests.xml")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = done.stdout.partition(" meshscope ==")[2]
    assert "pass     tp collectives: all_reduce = 4" in summary
    assert "8 → 16: 8 more per step" in summary
    assert len([path for path in (tmp_path / "kept").iterdir() if path.is_dir()]) == 3
    properties = ElementTree.parse(tmp_path / "tests.xml").iter("property")
    assert any("all_reduce = 4" in (one.get("value") or "") for one in properties)


def test_a_session_without_the_fixture_shows_nothing(tmp_path):
    """People who only have the package installed would see a section, or a warning, that is not theirs."""
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n", encoding="utf-8")
    done = run_pytest(tmp_path, "-W", "error")
    assert done.returncode == 0
    assert "meshscope" not in done.stdout.partition("test_own.py")[2]


def test_a_setting_that_is_no_number_is_refused(tmp_path):
    """A slip would end in a traceback of the plugin, or in a default."""
    (tmp_path / "test_own.py").write_text(
        'def test_own(mesh_run):\n    mesh_run("train.py")\n', encoding="utf-8"
    )
    done = run_pytest(tmp_path, "--meshscope-ranks", "two")
    assert done.returncode
    assert "meshscope_ranks): 'two' is not a number of 1 or more" in done.stdout + done.stderr
