"""A short private folder for sockets, and a run with the folder of a rank."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshscope.probe.schema.manifest import create_directory, rank_directory
from meshscope.probe.schema.rundir import create_run


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Return an empty directory with a path that is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="ms-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """Return a run with one rank in it."""
    path = create_run(tmp_path, "run-1", {"world_size": 1})
    create_directory(rank_directory(path, 0))
    return path
