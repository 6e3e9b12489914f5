"""A stub of the driver library, trees like sysfs and proc, and runs to write into."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.nvml_stub import Scenario, build, missing_compiler
from tests.trees import write

from meshscope.probe.agent.sources import ChildSource
from meshscope.probe.clock import now_ns
from meshscope.probe.recording.segment_series import SeriesBounds
from meshscope.probe.schema.rundir import create_run

PATIENCE_NS = 20_000_000_000


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a complete driver library."""
    if reason := missing_compiler():
        pytest.skip(f"needs a stub of the driver library: {reason}")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a driver library that lacks what older ones lack."""
    if reason := missing_compiler():
        pytest.skip(f"needs a stub of the driver library: {reason}")
    omitted = (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetRemappedRows",
        "nvmlGpmQueryDeviceSupport",
    )
    return build(tmp_path_factory.mktemp("old-nvml"), omit=omitted)


@pytest.fixture
def scenario(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Return a scenario of eight devices that child processes of this test find."""
    found = Scenario(tmp_path / "scenario")
    monkeypatch.setenv("NVML_STUB_SCENARIO", str(found.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return found


class Asked:
    """A reader in a child process, asked as the agent does but with all patience."""

    def __init__(self, name: str, **options) -> None:
        self.counted: dict[str, int] = {}
        self.source = ChildSource(name, self._count, **options)

    def _count(self, name: str, amount: int) -> None:
        self.counted[name] = self.counted.get(name, 0) + amount

    def read(self):
        """Return the next reading, None if the reader was given up."""
        end_ns = now_ns() + PATIENCE_NS
        self.source.ask(now_ns())
        while (descriptor := self.source.descriptor()) is not None and now_ns() < end_ns:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(50)
            if readings := self.source.take(now_ns()):
                return readings[0]
        return None


@pytest.fixture
def ask() -> Iterator[Callable[..., Asked]]:
    """Return a function that starts a reader in a child; all are ended."""
    made: list[Asked] = []

    def make(name: str, **options) -> Asked:
        made.append(Asked(name, **options))
        return made[-1]

    yield make
    for one in made:
        one.source.close()


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Return a tree with an InfiniBand port, an Ethernet one and a loopback."""
    root = tmp_path / "sys"
    port = root / "class/infiniband/mlx5_0/ports/1"
    write(port / "link_layer", "InfiniBand")
    write(port / "rate", "400 Gb/sec (4X NDR)")
    for name, value in {
        "counters/port_xmit_data": 1000,
        "counters/port_rcv_data": 2000,
        "counters/port_xmit_wait": 7,
        "counters/symbol_error": 1,
        "counters/port_rcv_errors": 2,
        "counters/link_downed": 0,
        "hw_counters/out_of_sequence": 3,
        "hw_counters/np_cnp_sent": 4,
    }.items():
        write(port / name, value)
    card = root / "class/net/eth0"
    write(card / "speed", 25000)
    write(card / "type", 1)
    write(card / "device/vendor", "0x1")
    for name, value in {"tx_bytes": 10, "rx_bytes": 20, "tx_errors": 0, "rx_errors": 5}.items():
        write(card / "statistics" / name, value)
    write(root / "class/net/lo/statistics/tx_bytes", 99)
    return root


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """Return the directory of a new run of two ranks."""
    return create_run(tmp_path, "run-1", {"world_size": 2})


@pytest.fixture
def bounds() -> SeriesBounds:
    """Return bounds that hold nothing back."""
    return SeriesBounds(
        segment_bytes=1 << 20, segment_s=3600.0, max_bytes=1 << 24, free_floor_frac=0.0
    )
