"""Which versions of the core dependencies doctor calls tried."""

import importlib.metadata
import tomllib

import pytest

from meshscope.probe.doctor import checks as module
from meshscope.probe.doctor.checks import State, all_checks
from meshscope.probe.doctor.versions import TESTED, Installed


@pytest.mark.parametrize(
    ("version", "older", "newer"),
    [
        ("2.2", False, False),
        ("2.2.0", False, False),
        ("2.1.9", True, False),
        ("2.10.0", False, False),
        ("3.1.1", False, False),
        ("3.1.1.post1", False, False),
        ("3.1.2", False, True),
        ("3.0.0rc1", False, False),
        (None, False, False),
    ],
)
def test_a_version_is_put_between_the_ends(version, older, newer):
    """Fails when doctor compares versions as text, or takes 2.2.0 for something but 2.2."""
    found = Installed("pandas", version, "2.2.0", "3.1.1")
    assert (found.is_too_old, found.is_newer) == (older, newer)


def test_the_lowest_versions_are_those_that_pip_may_take(project_dir):
    """Fails when pip may take a version below the lowest that was tried."""
    project = tomllib.loads((project_dir / "pyproject.toml").read_text())["project"]
    bounds = dict(requirement.split(">=") for requirement in project["dependencies"])
    assert bounds == {package: lowest for package, (lowest, _) in TESTED.items()}


def test_every_core_dependency_is_listed(tmp_path):
    """Fails when doctor leaves out a dependency that may be to blame."""
    found = {check.name: check for check in all_checks(tmp_path)}
    for package in TESTED:
        assert found[package].found.startswith(importlib.metadata.version(package))
        assert found[package].state is State.OK


@pytest.mark.parametrize(
    ("version", "state", "reported"),
    [
        ("1.5.3", State.LIMITED, "1.5.3, older than tested 2.2 to 3.1.1"),
        ("4.0.0", State.OK, "4.0.0, newer than tested 2.2 to 3.1.1"),
        (None, State.MISSING, "not installed"),
    ],
)
def test_what_lies_outside_is_reported(tmp_path, monkeypatch, version, state, reported):
    """Fails when a user cannot see that no test ever ran with this version."""
    here = Installed("pandas", version, "2.2", "3.1.1")
    monkeypatch.setattr(module, "core_dependencies", lambda: [here])
    (check,) = (check for check in all_checks(tmp_path) if check.name == "pandas")
    assert (check.state, check.found) == (state, reported)
