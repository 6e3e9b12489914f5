"""A release: its changelog, its version, and what a user installs from it."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from meshscope import __version__

VERSION, DAY = "9.8.7", "2001-02-03"


@pytest.fixture(scope="module")
def cut_release(project_dir):
    """Return .ci/cut_release.py as a module."""
    return _module(project_dir / ".ci" / "cut_release.py")


def _module(path):
    """Return a program of .ci/ as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(project_dir, tmp_path):
    """Return a copy of all that a release changes."""
    shutil.copytree(project_dir / "changes", tmp_path / "changes")
    (tmp_path / "src" / "meshscope").mkdir(parents=True)
    for name in ("pyproject.toml", "CHANGELOG.md", "src/meshscope/__init__.py"):
        shutil.copy(project_dir / name, tmp_path / name)
    return tmp_path


def test_a_release_has_one_section_below_the_title(cut_release, checkout):
    """Fails when a release leaves its changes above the title, under Unreleased, or in two places."""
    (checkout / "changes" / "one-more.fixed.md").write_text("One more.\n", encoding="utf-8")
    before = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    cut_release.cut(checkout, VERSION, DAY)
    text = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.startswith("# Changelog\n")
    assert "[Unreleased]" not in text
    section = text.split(f"## [{VERSION}] - {DAY}\n")[1].split("\n## [")[0]
    headings = [line for line in section.splitlines() if line.startswith("### ")]
    assert len(headings) == len(set(headings))
    assert "- One more." in section
    assert not [line for line in before.splitlines() if line[:2] == "- " and line not in text]
    assert [path.name for path in (checkout / "changes").iterdir()] == ["README.md"]
    assert f'__version__ = "{VERSION}"' in (checkout / "src/meshscope/__init__.py").read_text()


@pytest.mark.parametrize("mark", ["", "- ", "* "])
def test_each_change_is_one_item(cut_release, checkout, mark):
    """Fails when a change that was written as an item of a list becomes an item of an item."""
    (checkout / "changes" / "one-more.fixed.md").write_text(
        f"{mark}One - more.\n", encoding="utf-8"
    )
    cut_release.cut(checkout, VERSION, DAY)
    text = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "\n- One - more.\n" in text


def test_the_next_release_leaves_the_last_one_alone(cut_release, checkout):
    """Fails when a later release changes what an earlier one says."""
    cut_release.cut(checkout, VERSION, DAY)
    first = (checkout / "CHANGELOG.md").read_text(encoding="utf-8").split(f"## [{VERSION}]")[1]
    (checkout / "changes" / "later.added.md").write_text("Later.\n", encoding="utf-8")
    cut_release.cut(checkout, "9.9.0", DAY)
    text = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.index("## [9.9.0]") < text.index(f"## [{VERSION}]")
    assert text.split(f"## [{VERSION}]")[1] == first


@pytest.mark.parametrize(
    ("version", "message"), [("next", "is no version"), (VERSION, "has 9.8.7 already")]
)
def test_a_wrong_version_changes_nothing(cut_release, checkout, version, message):
    """Fails when a mistyped release removes the fragments."""
    changelog = checkout / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8") + f"\n## [{VERSION}] - {DAY}\n"
    changelog.write_text(text, encoding="utf-8")
    (checkout / "changes" / "one-more.fixed.md").write_text("One more.\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        cut_release.cut(checkout, version)
    assert changelog.read_text(encoding="utf-8") == text
    assert len(list((checkout / "changes").iterdir())) > 1


def test_what_is_not_released_has_a_place_in_the_changelog(project_dir):
    """Fails when a user finds neither the section of the installed version nor the changes to come."""
    changelog = (project_dir / "CHANGELOG.md").read_text(encoding="utf-8")
    is_cut = re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M)
    assert is_cut or "## [Unreleased]" in changelog
    assert changelog.count(f"## [{__version__}]") <= 1


GITHUB = {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "owner/name"}


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, None),
        ({"GITHUB_REPOSITORY": "owner/name"}, None),
        (GITHUB, "https://git.example/owner/name"),
        ({**GITHUB, "PROJECT_URL": "https://other.example/"}, "https://other.example"),
    ],
)
def test_a_wheel_links_to_the_repository_it_was_released_from(
    project_dir, checkout, environment, address
):
    """Fails when a user of an installed package finds neither its issues nor its source."""
    for name in ("README.md", "LICENSE", ".ci/project_urls.py"):
        (checkout / name).parent.mkdir(exist_ok=True)
        shutil.copy(project_dir / name, checkout / name)
    program = "import setuptools.build_meta as build; build.build_wheel('dist')"
    for command in ([".ci/project_urls.py"], ["-c", program]):
        given = {"PATH": os.environ["PATH"], **environment}
        made = subprocess.run(
            [sys.executable, *command], cwd=checkout, env=given, capture_output=True, check=False
        )
        assert made.returncode == 0, made.stderr
    (wheel,) = (checkout / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("/METADATA"))
        text = archive.read(name).decode()
    links = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", text, re.MULTILINE))
    assert links.get("Homepage") == address
    assert links.get("Issues") == (address and f"{address}/issues")


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Return the folder of programs of a fresh environment with the wheel of the sdist.

    Dependencies are those of this environment, so that nothing is fetched.
    """
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    here = distribution("numpy").locate_file("")
    (site / "here.pth").write_text(f"{here}\n", encoding="utf-8")
    arguments = ["--no-deps", "--no-index", "--ignore-installed", "--quiet"]
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    _output([*pip, "install", *arguments, str(built.wheel)], folder)
    return folder / "bin"


def test_the_sdist_holds_what_its_wheel_is_made_of(built):
    """Fails when the source of a release leaves out the licence, the readme or a part."""
    names = {name.split("/", 1)[-1] for name in built.sdist_names}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/meshscope/py.typed"} <= names
    assert "src/meshscope/analyze/wording/catalogue.toml" in names


@pytest.mark.slow
def test_a_fresh_environment_diagnoses_a_job(installed, tmp_path):
    """Fails when the installed package lacks a module or a file that a first diagnosis needs."""
    where = [str(installed / "python"), "-c", "import meshscope; print(meshscope.__file__)"]
    assert Path(_output(where, tmp_path)).is_relative_to(installed.parent)
    make = [str(installed / "python"), "-m", "meshscope.analyze.synthetic"]
    _output([*make, "--layout", "tp1,pp2,dp2", "--steps", "4", "--out", "run"], tmp_path)
    (run,) = (tmp_path / "run").iterdir()
    shown = [str(installed / "meshscope"), "diagnose", str(run), "--format", "json"]
    assert json.loads(_output(shown, tmp_path))["findings"]


def _output(command: list[str], folder: Path) -> str:
    """Return what a program prints, started without the paths of this environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
