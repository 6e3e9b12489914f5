"""Stage times by events on a real device: right, cheap, and without waiting for it."""

import time

import pytest
import torch

from meshscope import probe
from meshscope.probe.reader.run import read_run

pytestmark = pytest.mark.gpu

STEPS = 20
SIZE = 4096


def train(steps, size=SIZE):
    """Run steps of one heavy module call each; return the CPU time of launching, in ns."""
    layer = torch.nn.Linear(size, size, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
    x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    begin_ns = time.thread_time_ns()
    for _ in range(steps):
        layer(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.thread_time_ns() - begin_ns


@pytest.fixture
def spans_of(tmp_path):
    """Return a function that trains under the probe and returns spans and manifest of rank 0."""

    def run(steps=STEPS):
        probe.attach(tmp_path / "run")
        train(2)
        train(steps)
        torch.cuda.synchronize()
        # Two more borders, at which everything before is complete.
        probe.step()
        probe.step()
        probe.detach()
        found = read_run(tmp_path / "run")
        return found.tables["span"].to_pandas(), found.rank_manifests[0]

    yield run
    probe.detach()


def test_device_times_are_those_of_the_kernels(spans_of):
    """If this fails, stage times on GPUs are those of launching, or of another stage."""
    spans, manifest = spans_of()
    timed = spans[spans["device_dur_ns"].notna() & (spans["kind"] == "forward")]
    assert len(timed) >= STEPS
    layer = torch.nn.Linear(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(5):
        layer(x)
    begin.record()
    for _ in range(20):
        layer(x)
    end.record()
    torch.cuda.synchronize()
    expected_ns = begin.elapsed_time(end) / 20 * 1e6
    assert 0.5 * expected_ns < timed["device_dur_ns"].median() < 2 * expected_ns
    assert (timed["device_start_ns"] >= timed["start_ns"] - 1_000_000).all()
    clock = manifest["annotations"]["device_clock"]
    assert clock["least_ns"] <= clock["most_ns"]


def test_the_device_runs_in_order(spans_of):
    """If this fails, a device time was joined to the wrong span."""
    spans, _ = spans_of()
    timed = spans[spans["device_dur_ns"].notna() & spans["kind"].isin(["forward", "backward"])]
    timed = timed.sort_values("start_ns")
    ends = timed["device_start_ns"] + timed["device_dur_ns"]
    # Device times are floats of a millisecond: a few microseconds are their noise.
    assert (
        timed["device_start_ns"].iloc[1:].to_numpy() >= ends.iloc[:-1].to_numpy() - 10_000
    ).all()


def test_a_graph_can_be_captured_under_the_probe(tmp_path):
    """If this fails, the probe breaks jobs that capture CUDA graphs."""
    probe.attach(tmp_path / "run")
    try:
        train(3, size=256)
        layer = torch.nn.Linear(256, 256, device="cuda")
        x = torch.randn(256, 256, device="cuda")
        layer(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layer(x)
        graph.replay()
        torch.cuda.synchronize()
    finally:
        probe.detach()
    counters = read_run(tmp_path / "run").rank_manifests[0]["counters"]
    assert not [name for name in counters if name.endswith("_errors")]


def test_launching_is_not_slowed_by_waiting(tmp_path):
    """If this fails, the probe waits for the device at some border."""
    train(5, 2 * SIZE)
    torch.cuda.synchronize()
    probe.attach(tmp_path / "run")
    try:
        train(5, 2 * SIZE)
        torch.cuda.synchronize()
        begin = time.monotonic_ns()
        train(STEPS, 2 * SIZE)
        launched_ns = time.monotonic_ns() - begin
        torch.cuda.synchronize()
        done_ns = time.monotonic_ns() - begin
    finally:
        probe.detach()
    assert launched_ns < 0.9 * done_ns
