"""Where collectives are issued is noted once for each kind, type and size, and at most so often."""

import time

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshscope import probe
from meshscope.probe.hooks import call_places
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.manifest import CALL_PLACES_KEY, MESSAGE_PLACES_KEY


@pytest.fixture
def world():
    """Make this process rank 1 of four."""
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield
    probe.detach()
    dist.destroy_process_group()


def noted(run, key=CALL_PLACES_KEY):
    """Return what the manifest of rank 1 has of places."""
    return read_run(run).rank_manifests[1]["annotations"].get(key, [])


def reduce(count, dtype=torch.float32):
    """Issue an all-reduce of so many elements from this line."""
    dist.all_reduce(torch.ones(count, dtype=dtype))


def test_each_kind_type_and_size_is_noted_where_it_was_issued_first(world, tmp_path):
    """Fails when who differs is known, but nobody can say at which line of the program."""
    probe.attach(tmp_path / "run")
    for count in (8, 8, 16, 8):
        reduce(count)
    reduce(8, torch.float16)
    dist.barrier()
    probe.detach()
    places = noted(tmp_path / "run")
    line = reduce.__code__.co_firstlineno + 2
    assert [one[2:4] for one in places] == [
        ["float32", 32],
        ["float32", 64],
        ["float16", 16],
        ["", 0],
    ]
    assert {(one[4], one[6]) for one in places[:3]} == {("reduce", line)}
    assert places[0][5].endswith("test_call_places.py")
    assert read_run(tmp_path / "run").tables["collective"]["seq"].to_pylist() == [*range(6)]


def test_messages_are_noted_by_peer_and_size(world, tmp_path):
    """Fails when two ends of a message differ and nobody can say at which lines."""
    probe.attach(tmp_path / "run")
    for count in (8, 8, 16):
        dist.send(torch.ones(count), 2)
    dist.recv(torch.ones(8), 0)
    probe.detach()
    places = noted(tmp_path / "run", MESSAGE_PLACES_KEY)
    first = test_messages_are_noted_by_peer_and_size.__code__.co_firstlineno + 4
    assert [(*one[1:5], one[7]) for one in places] == [
        (0, 2, "float32", 32, first),
        (0, 2, "float32", 64, first),
        (1, 0, "float32", 32, first + 1),
    ]
    assert read_run(tmp_path / "run").tables["p2p"]["seq"].to_pylist() == [0, 1, 2, 0]


def test_places_are_on_disk_before_the_process_ends(world, tmp_path):
    """Fails when a rank that is aborted in a mismatch takes the line with it."""
    probe.attach(tmp_path / "run")
    reduce(8)
    until = time.monotonic() + 20
    while not noted(tmp_path / "run") and time.monotonic() < until:
        time.sleep(0.05)
    assert [one[3] for one in noted(tmp_path / "run")] == [32]


def test_a_wrapper_of_an_installed_package_is_no_line_of_the_program(world, tmp_path):
    """Fails when every deprecated call of torch, or every call of a framework, names the same line of a library."""
    probe.attach(tmp_path / "run")
    scope = {"__name__": "framework.comm", "dist": dist}
    source = "def wrapper(x): dist.all_reduce(x)"
    exec(compile(source, "/v/site-packages/framework/comm.py", "exec"), scope)
    scope["wrapper"](torch.ones(8))
    probe.detach()
    own = test_a_wrapper_of_an_installed_package_is_no_line_of_the_program.__name__
    assert [one[4] for one in noted(tmp_path / "run")] == [own]


def test_sizes_that_change_all_the_time_are_bounded(world, tmp_path, monkeypatch):
    """Fails when sequences of any length make a rank remember, or write, more with every step."""
    monkeypatch.setattr(call_places, "MOST_PLACES", 3)
    monkeypatch.setattr(call_places, "MOST_SIZES", 4)
    probe.attach(tmp_path / "run")
    for count in range(1, 12):
        reduce(count)
    probe.detach()
    assert len(noted(tmp_path / "run")) == 3
    assert read_run(tmp_path / "run").tables["collective"].num_rows == 11


def test_what_no_line_of_the_program_issued_is_recorded_without_a_place(
    world, tmp_path, monkeypatch
):
    """Fails when a call from a thread of the library costs its record, and with it the count of the group."""
    monkeypatch.setattr(call_places, "frame_of_program", lambda frame: None)
    probe.attach(tmp_path / "run")
    reduce(8)
    probe.detach()
    assert noted(tmp_path / "run") == []
    assert read_run(tmp_path / "run").tables["collective"].num_rows == 1


def test_a_place_that_cannot_be_looked_up_costs_no_record(world, tmp_path, monkeypatch):
    """Fails when an error there leaves a gap in the numbers of a group: all that follows would be shifted."""

    def fail(frame):
        raise RuntimeError("no frames here")

    monkeypatch.setattr(call_places, "frame_of_program", fail)
    probe.attach(tmp_path / "run")
    reduce(8)
    reduce(8)
    probe.detach()
    assert read_run(tmp_path / "run").tables["collective"]["seq"].to_pylist() == [0, 1]


def test_sizes_are_forgotten_when_they_are_many():
    """Fails when the memory of a rank grows with every new size."""
    places, sizes = call_places.CallPlaces(None), set()
    places._noted[CALL_PLACES_KEY] = [[]] * call_places.MOST_PLACES
    for size in range(2 * call_places.MOST_SIZES + 5):
        places.meet(sizes, 0, 0, "float32", size)
    assert len(sizes) <= call_places.MOST_SIZES
