"""Data loading, checkpoints, collections and memory leave their rows."""

import _thread
import gc
import io
import os
import signal
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader

from meshscope import probe
from meshscope.probe.compat.torch_names import Device
from meshscope.probe.hooks import memory as memory_module
from meshscope.probe.hooks.memory import MemoryHook
from meshscope.probe.reader.run import read_run


@pytest.fixture
def tables_of(tmp_path):
    """Return a function that runs code under the probe and returns the tables."""

    def run(code, **settings):
        probe.attach(tmp_path / "run", probe.ProbeConfig(**settings))
        code()
        probe.step()
        probe.detach()
        return {name: t.to_pandas() for name, t in read_run(tmp_path / "run").tables.items()}

    yield run
    probe.detach()


def count(tables, kind):
    """Return how many spans of a kind there are."""
    return int((tables["span"]["kind"] == kind).sum())


def test_each_batch_is_a_span(tables_of):
    """Fails when time spent waiting for data is not seen."""
    loader = DataLoader(list(range(8)), batch_size=2)
    tables = tables_of(lambda: list(loader))
    assert count(tables, "data_load") == 4 + 1  # the last call finds the end


def test_a_checkpoint_is_a_span(tables_of):
    """Fails when time spent saving is not seen, or a nested save counts twice."""
    assert (
        count(tables_of(lambda: torch.save({"a": torch.ones(3)}, io.BytesIO())), "checkpoint") == 1
    )


def test_a_distributed_checkpoint_is_one_span(tables_of, tmp_path):
    """Fails when a save through torch.distributed.checkpoint is not seen."""
    import torch.distributed.checkpoint as dcp

    state = {"a": torch.ones(3)}
    with pytest.warns(UserWarning, match="single process"):
        tables = tables_of(lambda: dcp.save(state, checkpoint_id=tmp_path / "saved", no_dist=True))
    assert count(tables, "checkpoint") == 1


def test_long_collections_are_spans(tables_of):
    """Fails when garbage collection pauses are not seen, or every tiny one is recorded."""
    gc.disable()
    try:
        assert count(tables_of(gc.collect, min_gc_ns=0), "gc") >= 1
    finally:
        gc.enable()


def test_a_signal_during_a_collection_is_not_lost(tables_of):
    """Fails when Ctrl-C has no effect during a collection, or that is put into another step."""
    # Called by the collector when it starts: the signal comes once, with no code in Python.
    once = partial(next, map(_thread.interrupt_main, [signal.SIGINT]))
    comes = partial(getattr, type("Comes", (), {"start": property(once), "stop": None})())

    def interrupted():
        probe.step()
        gc.collect()  # What is collected below has no finalizer in Python.
        gc.callbacks.insert(0, comes)
        with pytest.raises(KeyboardInterrupt):
            gc.collect()

    gc.disable()
    others = gc.callbacks[:]
    gc.callbacks.clear()
    # A shell that starts a job in the background has it ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        tables = tables_of(interrupted, min_gc_ns=0)
    finally:
        signal.signal(signal.SIGINT, before)
        gc.callbacks[:] = others
        gc.enable()
    spans = tables["span"]
    assert list(spans["step"][spans["kind"] == "gc"]) == [1, 1]


def test_short_collections_are_left_out(tables_of):
    """Fails when thousands of microsecond collections flood the capture."""
    assert count(tables_of(lambda: [gc.collect(0) for _ in range(9)], min_gc_ns=10**12), "gc") == 0


def test_the_end_of_a_step_and_the_begin_of_the_next_share_a_reading(tables_of, monkeypatch):
    """Fails when a step pays for memory statistics that cannot have changed since."""
    readings = []
    read = MemoryHook._read
    monkeypatch.setattr(MemoryHook, "_read", lambda hook: readings.append(0) or read(hook))

    def steps():
        for _ in range(4):
            probe.step()

    memory = tables_of(steps)["memory"]
    assert len(readings) == 5
    assert list(memory["phase"]) == ["after_optimizer", "step_start"] * 5
    assert list(memory["step"]) == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    resident = memory["rss_bytes"].to_numpy().reshape(5, 2)
    assert (resident[:, 0] == resident[:, 1]).all()


def test_memory_is_sampled_in_the_wanted_steps(tables_of):
    """Fails when the sampling interval is ignored."""

    def steps():
        for _ in range(6):
            probe.step()

    memory = tables_of(steps, memory_every_steps=3)["memory"]
    assert set(memory["step"]) == {0, 3, 6}
    resident = memory["rss_bytes"]
    assert resident.between(10 << 20, memory["capacity_bytes"]).all()
    assert memory["allocated_bytes"].isna().all()  # not known, which is not zero
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert abs(memory["capacity_bytes"][0] - physical) < physical * 0.01


def test_memory_of_a_device_is_read_seldom_after_the_first_steps(tables_of, monkeypatch):
    """Fails when each step pays for the statistics of the allocator, or few steps have none."""
    monkeypatch.setattr(memory_module, "cuda_memory_reader", lambda: lambda: (1, 2, 3))
    monkeypatch.setattr(memory_module, "cuda_device", lambda: Device("device", 10, None))

    def steps():
        for _ in range(40):
            probe.step()

    assert set(tables_of(steps)["memory"]["step"]) == {*range(16), 16, 24, 32, 40}


@pytest.mark.filterwarnings("ignore:torch.distributed.distributed_c10d:FutureWarning")
def test_what_a_background_save_does_is_no_stall(tables_of, tmp_path):
    """Fails when the thread of an asynchronous save looks like the training that waits."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        tables = tables_of(
            lambda: dcp.async_save({"a": torch.ones(3)}, checkpoint_id=tmp_path / "saved").result()
        )
    finally:
        dist.destroy_process_group()
    assert (tmp_path / "saved" / ".metadata").exists()
    assert count(tables, "checkpoint") == 1
    assert len(tables["collective"]) == 0
