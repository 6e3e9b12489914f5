"""Recorders whose background thread sleeps, so that a test decides when to drain."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from meshscope import probe
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.rundir import create_run

ASLEEP = {"wake_s": 3600.0, "slot_count": 256, "free_floor_frac": 0.0}


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """Return the directory of a new run of two ranks."""
    return create_run(tmp_path, "run-1", {"world_size": 2})


@pytest.fixture
def lone_world() -> Iterator[None]:
    """Make this process the only rank."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    probe.detach()
    dist.destroy_process_group()


@pytest.fixture
def make_recorder(run_path: Path) -> Iterator[Callable[..., Recorder]]:
    """Return a function that opens a recorder; all are closed at the end."""
    opened = []

    def make(rank: int = 0, **settings) -> Recorder:
        opened.append(Recorder(run_path, rank, settings=StorageSettings(**ASLEEP | settings)))
        return opened[-1]

    yield make
    for recorder in opened:
        recorder.close()


@pytest.fixture
def flip_byte() -> Callable[[Path, int], None]:
    """Return a function that inverts one byte of a file."""

    def flip(path: Path, offset: int) -> None:
        content = bytearray(path.read_bytes())
        content[offset] ^= 0xFF
        path.write_bytes(content)

    return flip
