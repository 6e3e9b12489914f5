"""What the architecture tests look at: the source files, parsed once."""

import ast
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE_FOLDERS = ("probe", "analyze", "dashboard", "reference_trainer", "src")
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", *SOURCE_FOLDERS)


@dataclass(frozen=True)
class Source:
    """One Python file of the product."""

    path: Path
    name: str
    """Path relative to the project root, with forward slashes."""
    text: str
    tree: ast.Module


@dataclass(frozen=True)
class Built:
    """What a release uploads, built from a copy of the sources: the wheel from the sdist."""

    wheel: Path
    wheel_names: frozenset[str]
    sdist_names: frozenset[str]


@pytest.fixture(scope="session")
def built(project_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return an sdist and the wheel that is made of it."""
    copy = tmp_path_factory.mktemp("source")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in BUILT_FROM:
        source = project_dir / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=unwanted)
        else:
            shutil.copy(source, copy / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", copy / "dist", copy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (copy / "dist").glob("*.whl")
    (sdist,) = (copy / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as sources:
        return Built(wheel, frozenset(archive.namelist()), frozenset(sources.getnames()))


@pytest.fixture(scope="session")
def sources(project_dir: Path) -> list[Source]:
    """Return every Python file of the product, real files only."""
    return _parse(project_dir, SOURCE_FOLDERS)


@pytest.fixture(scope="session")
def test_sources(project_dir: Path) -> list[Source]:
    """Return every Python file of the tests."""
    return _parse(project_dir, ("tests",))


@pytest.fixture(scope="session")
def tracked_files(project_dir: Path) -> list[Path]:
    """Return the files under version control and those that would be added."""
    if not (project_dir / ".git").exists():
        pytest.skip("needs a git checkout: this copy has no .git")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=project_dir,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [project_dir / name for name in listing.stdout.split("\0") if name]
    return [path for path in files if path.is_file() and not path.is_symlink()]


@pytest.fixture(scope="session")
def modules_after():
    """Return a function that runs code in a fresh interpreter and returns its modules."""

    @cache
    def run(code: str) -> frozenset[str]:
        probe = f"{code}\nimport sys\nprint('\\n' + ' '.join(sys.modules))"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", probe],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return frozenset(done.stdout.splitlines()[-1].split())

    return run


def _parse(root: Path, folders: tuple[str, ...]) -> list[Source]:
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if path.resolve() != path or "egg-info" in name:
                continue
            text = path.read_text(encoding="utf-8")
            found.append(Source(path, name, text, ast.parse(text)))
    return found
