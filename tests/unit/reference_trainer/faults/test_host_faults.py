"""What goes wrong inside one process."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from meshscope.probe.clock import thread_cpu_ns
from meshscope.reference_trainer.faults import host_faults
from meshscope.reference_trainer.faults.host_faults import GarbagePause, SlowStorage, burn_cpu


def test_a_pause_is_a_real_collection_that_can_be_repeated():
    """Fails if a second pause would find nothing to look at, or the collector did not run."""
    seen = []
    pause = GarbagePause(1)
    before = len(gc.get_objects(generation=2))
    gc.callbacks.append(note := lambda phase, found: seen.append((phase, found["generation"])))
    try:
        pause.collect()
        pause.collect()
    finally:
        gc.callbacks.remove(note)
    assert [phase for phase, generation in seen if generation == 2] == ["start", "stop"] * 2
    assert len(gc.get_objects(generation=2)) > 0.9 * before > 90_000
    assert gc.isenabled()


@pytest.mark.sampled(keep=())
def test_a_pause_says_how_long_it_can_be(monkeypatch):
    """Fails if a heap that may not grow any more is taken for one that is large enough."""
    monkeypatch.setattr(host_faults, "_HEAP_MOST", 150_000)
    wanted_ns, before = 10**15, len(gc.get_objects(generation=2))
    pause = GarbagePause(wanted_ns)
    assert 0 < pause.longest_ns < wanted_ns
    assert len(gc.get_objects(generation=2)) - before < 1_000_000
    assert GarbagePause(1).longest_ns >= 1


def test_a_slow_storage_takes_latency_and_bandwidth_and_keeps_the_state(tmp_path):
    """Fails if a checkpoint is quicker than its storage, or cannot be loaded."""
    state = {"weight": torch.arange(1000.0)}
    path = tmp_path / "state.pt"
    span_ns, asked_ns = SlowStorage(path).save(state, latency_ns=5_000_000, bytes_per_s=1e6)
    assert asked_ns == 5_000_000 + path.stat().st_size * 1000 > 5_000_000 + 4_000_000
    assert span_ns[1] - span_ns[0] >= asked_ns
    assert torch.equal(torch.load(path)["weight"], state["weight"])


def test_burnt_time_is_time_of_the_cpu():
    """Fails if burning would leave the core to others."""
    before_ns = thread_cpu_ns()
    burn_cpu(3_000_000)
    assert thread_cpu_ns() - before_ns >= 3_000_000


_GROW = """
from meshscope.reference_trainer.faults.host_faults import MemoryGrowth

def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096

growth = MemoryGrowth()
before = resident_bytes()
start_ns, end_ns = growth.grow(50_000_000)
print(resident_bytes() - before, growth.held_bytes, start_ns <= end_ns)
"""


@pytest.mark.sampled(keep=())
def test_grown_memory_is_resident():
    """Fails if pages are reserved and never touched."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not tell resident memory")
    # A process that has freed nothing yet: it has no resident pages to give out again.
    grown = subprocess.run(
        [sys.executable, "-c", _GROW], capture_output=True, text=True, check=True
    )
    resident, held, in_order = grown.stdout.split()
    assert int(resident) > 40_000_000
    assert (held, in_order) == ("50000000", "True")
