"""A profiler whose schedule repeats writes a file of each rank for each cycle."""

import json

import pytest
from tests.unit.analyze.read.kineto.test_importer import kernel, mentions, step_note, write_rank

from meshscope.analyze.load.ingest import Keeping, ingest
from meshscope.analyze.read import import_trace
from meshscope.analyze.read.reading import Reading
from meshscope.probe.schema.errors import TraceFormatError


def write_cycles(folder, cycles, ranks=(0, 1)):
    """Write a file a rank and cycle, named as ``tensorboard_trace_handler`` names them."""
    for rank in ranks:
        for at, first in enumerate(cycles):
            begin = 1000 * (at + 1)
            events = [
                step_note(first, begin, 100),
                step_note(first + 1, begin + 100, 100),
                kernel("gemm", begin + 10, 50 + at),
            ]
            name = f"host_{rank}.17953668{at}{rank}.pt.trace.json"
            write_rank(folder / name, events, rank=rank, world_size=2)
    return folder


def write_worker(folder, worker, first):
    """Write a file of a job that is not distributed: nothing but the worker in its name says who wrote it."""
    events = [step_note(first, 1000 * first, 100), kernel("gemm", 1000 * first + 10, 50)]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events})
    (folder / f"{worker}.17953668000{first:02d}.pt.trace.json").write_text(text)


def test_cycles_of_one_process_are_of_one_rank(tmp_path):
    """Fails when the default layout of a job on one device is refused for want of a rank."""
    write_worker(tmp_path, "host_4711", 2)
    write_worker(tmp_path, "host_4711", 6)
    assert steps(import_trace(tmp_path)) == ((0,), [6])


def test_two_processes_without_a_rank_are_refused(tmp_path):
    """Fails when the traces of two ranks are taken for cycles of one."""
    write_worker(tmp_path, "host_4711", 2)
    write_worker(tmp_path, "host_4712", 6)
    with pytest.raises(TraceFormatError, match="names no rank"):
        import_trace(tmp_path)


def steps(trace):
    """Return the ranks and steps that were read."""
    frame = trace.frame("step")
    return trace.ranks, sorted(set(frame["step"]))


def test_the_last_cycle_is_read_and_the_others_are_named(tmp_path):
    """Fails when the folder that the profiler fills by default is refused."""
    trace = import_trace(write_cycles(tmp_path, (2, 6, 10)))
    assert steps(trace) == ((0, 1), [10, 11])
    assert trace.frame("kernel")["dur_ns"].tolist() == [52_000, 52_000]
    assert mentions(trace, "1: steps 2-3, 2: steps 6-7, 3: steps 10-11", "--cycle")


def test_any_cycle_can_be_chosen(tmp_path):
    """Fails when the option reads another cycle than the one that it names."""
    write_cycles(tmp_path, (2, 6, 10))
    trace = import_trace(tmp_path, reading=Reading(cycle=2))
    assert steps(trace) == ((0, 1), [6, 7])
    assert trace.frame("kernel")["dur_ns"].tolist() == [51_000, 51_000]


def test_a_cycle_that_more_ranks_have_goes_first(tmp_path):
    """Fails when a cycle that one rank did not write any more leaves that rank out."""
    write_cycles(tmp_path, (2, 6))
    write_cycles(tmp_path, (2, 6, 10), ranks=(0,))
    assert steps(import_trace(tmp_path)) == ((0, 1), [6, 7])


def test_a_cycle_that_is_not_there_is_refused(tmp_path):
    """Fails when a number beyond the cycles gives an empty run."""
    write_cycles(tmp_path, (2, 6))
    with pytest.raises(TraceFormatError, match=r"no cycle 3: the profiler ran 2"):
        import_trace(tmp_path, reading=Reading(cycle=3))


def test_two_files_of_one_rank_and_the_same_steps_are_refused(tmp_path):
    """Fails when a copy of a file counts as a cycle."""
    write_cycles(tmp_path, (2, 2))
    with pytest.raises(TraceFormatError, match=r"and so is .* of the same steps"):
        import_trace(tmp_path)


def test_each_cycle_is_kept_as_a_run_of_its_own(tmp_path):
    """Fails when a cycle that was kept before stands for the one that is asked for."""
    folder = tmp_path / "traces"
    folder.mkdir()
    write_cycles(folder, (2, 6))
    runs = tmp_path / "runs"
    found = {cycle: ingest(folder, Keeping(runs_dir=runs, cycle=cycle)) for cycle in (None, 1, 2)}
    assert len({one.path for one in found.values()}) == 3
    assert [steps(one.trace)[1][0] for one in found.values()] == [6, 2, 6]
    again = ingest(folder, Keeping(runs_dir=runs, cycle=1))
    assert again.reused
    assert again.path == found[1].path
