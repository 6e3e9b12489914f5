"""Fixtures and rules that hold for every test."""

import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.order import longest_first
from tests.sampled import left_out
from tests.turns import turn

PROJECT = Path(__file__).resolve().parent.parent
"""The project root."""

JOB_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher sets; a test that leaves one behind turns the next test into a rank."""

# Two busy cores make any per-example time limit a coin toss. CI judges one change, and twice
# alike; new examples are looked for wherever else the tests run.
IN_CI = bool(os.environ.get("CI"))
settings.register_profile(
    "meshscope", deadline=None, max_examples=25 if IN_CI else 60, derandomize=IN_CI
)
settings.load_profile("meshscope")


def traces_folder() -> Path:
    """Return where the shared real traces are expected."""
    return Path(os.environ.get("MESHSCOPE_TRACES") or PROJECT.parent / "shared" / "traces")


def gpu_is_missing() -> str:
    """Return why there is no GPU to test on, or an empty string if there is one."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "torch sees no CUDA device"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run, with the reason."""
    if item.get_closest_marker("gpu") and (reason := gpu_is_missing()):
        pytest.skip(f"needs a GPU: {reason}")
    if item.get_closest_marker("traces") and not traces_folder().is_dir():
        pytest.skip(
            "needs the shared real traces: the folder is absent (MESHSCOPE_TRACES names another)"
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what CI does not try; have the processes begin with the files that take long."""
    if IN_CI:
        others = set(left_out(items))
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = [item for item in items if item not in others]
    if hasattr(config, "workerinput"):
        longest_first(items)


def pytest_collection_finish() -> None:
    """Spare every collection of garbage the walk through all modules and tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep the tests of other processes away from one that is marked ``alone``."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    # The folder of this process lies in that of all.
    place = Path(item.config.option.basetemp).with_name("turn")
    with turn(place, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """Return the folder of real traces; it is read-only."""
    folder = traces_folder()
    if not folder.is_dir():
        pytest.skip(
            "needs the shared real traces: the folder is absent (MESHSCOPE_TRACES names another)"
        )
    return folder


@pytest.fixture(scope="session")
def project_dir() -> Path:
    """Return the project root."""
    return PROJECT


@pytest.fixture(scope="session", autouse=True)
def _runs_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have commands keep what they read in a temporary folder, not in that of the developer."""
    os.environ["MESHSCOPE_RUNS"] = str(tmp_path_factory.mktemp("runs"))
    yield
    del os.environ["MESHSCOPE_RUNS"]


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread, a job variable, a process group or a directory behind."""
    before = _world()
    yield
    after = _world()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, f"the test left something behind (before, after): {changed}"


def _world() -> dict[str, object]:
    distributed = sys.modules.get("torch.distributed")
    return {
        "threads": {t.name for t in threading.enumerate() if not t.daemon and t.is_alive()},
        "variables": {
            name: value
            for name, value in os.environ.items()
            if name in JOB_VARIABLES or name.startswith("MESHSCOPE_")
        },
        "process group": bool(
            distributed and distributed.is_available() and distributed.is_initialized()
        ),
        "directory": Path.cwd(),
    }
