"""The workflow files of the documentation, command by command, on a repository of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

TRAIN = """
import time
from meshscope import probe

probe.attach()
for _ in range(12):
    time.sleep({seconds})
    probe.step()
"""
TEST = "def test_own():\n    pass\n"
LAUNCH = "python"
"""Instead of torchrun: what is tried here is the workflow, with any command that makes a run."""
FEWER = ("in 1 2 3 4 5;", "in 1 2;")
"""Runs of the baseline: the same commands in less time."""

READERS: dict[str, Callable[[str], object]] = {
    "junit": lambda text: list(ElementTree.fromstring(text)),
    "codequality": json.loads,
    "metrics": lambda text: text.endswith("# EOF\n"),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a clone of a repository with a job."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    (origin / "train.py").write_text(TRAIN.format(seconds=0.02))
    (origin / "test_train.py").write_text(TEST)
    (origin / ".gitignore").write_text("meshscope_runs/\n.base/\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*who, "commit", "-qm", "job")):
        subprocess.run(["git", *words], cwd=origin, check=True)
    subprocess.run(["git", "clone", "-q", str(origin), str(clone)], check=True)
    return clone


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return what a runner sets, with the commands of this environment first."""
    left = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    left.pop("MESHSCOPE_RUNS", None)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return left | {"PATH": path, "LAUNCH": LAUNCH, "HOME": str(folder.parent)} | more


def run_all(commands: list[str], folder: Path, variables: dict[str, str]) -> list[int]:
    """Run commands as runners do, except installations, and return their exit codes; the first failure ends it."""
    codes = []
    for command in commands:
        if command.startswith("pip install "):
            continue
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", command.replace(*FEWER)],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        codes.append(done.returncode)
        assert done.returncode in (0, 1), f"{command}\n{done.stdout}\n{done.stderr}"
        if done.returncode:
            break
    return codes


def slow_down(folder: Path) -> None:
    """Make the job of a clone ten times as slow."""
    (folder / "train.py").write_text(TRAIN.format(seconds=0.2))


@pytest.mark.sampled(keep=())
def test_github(project_dir: Path, repository: Path) -> None:
    """A stranger who copies the file would have to repair it first, or a slow change would pass it."""
    content = yaml.safe_load((project_dir / "docs" / "ci" / "github-actions.yml").read_text())
    jobs = {
        name: [step["run"] for step in job["steps"] if "run" in step]
        for name, job in content["jobs"].items()
    }
    assert content["env"]["LAUNCH"].startswith("torchrun ")
    page = repository.parent / "page.md"
    variables = environment(
        repository, GITHUB_BASE_REF="main", GITHUB_RUN_ID="7", GITHUB_STEP_SUMMARY=str(page)
    )
    assert set(run_all(jobs["baseline"], repository, variables)) == {0}
    assert len(json.loads((repository / "base.json").read_text())["runs"]) == 2
    slow_down(repository)
    assert run_all(jobs["speed"], repository, variables) == [0, 1]
    assert run_all(jobs["counts"], repository, variables)[-1] == 1
    text = page.read_text()
    assert "Loss found in 95 of 100 cases" in text
    assert text.count("### meshscope gate\n\nFAIL") == 2
    assert "failures" in (repository / "gate.xml").read_text()


@pytest.mark.sampled(keep=())
def test_gitlab(project_dir: Path, repository: Path) -> None:
    """The same for GitLab, whose reports are files."""
    content = yaml.safe_load((project_dir / "docs" / "ci" / "gitlab-ci.yml").read_text())
    jobs = {
        name: [*job["before_script"], *job["script"]]
        for name, job in content.items()
        if "script" in job
    }
    variables = environment(repository, CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main", CI_JOB_ID="7")
    assert set(run_all(jobs["baseline"], repository, variables)) == {0}
    slow_down(repository)
    for name in ("speed", "counts"):
        assert run_all(jobs[name], repository, variables)[-1] == 1
        for kind, files in content[name]["artifacts"]["reports"].items():
            for file in [files] if isinstance(files, str) else files:
                text = (repository / file).read_text()
                assert READERS[kind](text), kind
                (repository / file).unlink()
