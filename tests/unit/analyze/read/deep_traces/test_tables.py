"""Deep traces of a run become its kernels and operators, for the steps that they hold."""

import json

import numpy as np
import pytest
from tests.deep_run import (
    COMPUTE_NS,
    OFFSET_NS,
    START_NS,
    STEP_NS,
    add_trace,
    change_manifest,
    events_of,
    make_run,
    record,
    step_start_ns,
)
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.load.kept_tables import keep, read_kept
from meshscope.probe.schema.deep_trace import TraceName, description_file, raw_file
from meshscope.probe.schema.manifest import rank_directory


@pytest.fixture
def run(tmp_path):
    """Return a run of two ranks and 20 steps, without traces."""
    return make_run(tmp_path)


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def steps_of(trace, table="kernel", rank=0):
    """Return the steps of which a rank has rows."""
    return sorted(set(trace.rank_frame(table, rank)["step"].tolist()))


def test_events_are_on_the_clock_of_the_rank_and_in_its_steps(run):
    """Fails if a kernel is not where the probe saw its step, or linked to another operator."""
    for rank in (0, 1):
        add_trace(run, rank, [5, 6])
    trace = load_trace(run)
    kernel = trace.frame("kernel")
    compute = kernel[(kernel["rank"] == 1) & (kernel["category"] == "compute")]
    assert compute["step"].tolist() == [5, 6]
    assert compute["start_ns"].tolist() == [step_start_ns(step) + 65_000 for step in (5, 6)]
    assert compute["launch_ns"].tolist() == [step_start_ns(step) + 15_000 for step in (5, 6)]
    op = trace.rank_frame("op", 1).set_index("op_id")
    assert op.loc[compute["op_id"], "start_ns"].tolist() == [
        step_start_ns(step) + 10_000 for step in (5, 6)
    ]
    names = trace.frame("name").set_index(["rank", "name_id"])["name"]
    assert names[1, compute["name_id"].iloc[0]] == "compute_kernel"
    assert trace.kernel_steps == {0: (5, 6), 1: (5, 6)}
    assert mentions(trace, "Ranks 0 and 1", "kernels are known for steps 5-6 only", "ticket")


def test_the_rest_of_the_run_stays(run):
    """Fails if a trace adds collectives or steps, or changes those that the probe recorded."""
    before = load_trace(run)
    add_trace(run, 0, [5, 6])
    after = load_trace(run)
    for name in ("step", "span", "collective", "p2p", "group", "memory"):
        assert after.tables[name].equals(before.tables[name]), name


def test_all_traces_of_a_rank_count(run):
    """Fails if a second request hides the first, or two of their ids are the same."""
    add_trace(run, 0, [3], named=TraceName(3, 3, "a"))
    add_trace(run, 0, [10, 11], named=TraceName(10, 11, "b"))
    trace = load_trace(run)
    kernel, op = trace.rank_frame("kernel", 0), trace.rank_frame("op", 0)
    assert steps_of(trace) == [3, 10, 11]
    assert op["op_id"].is_unique
    assert kernel["correlation"].is_unique
    linked = kernel.merge(op, on="op_id", suffixes=("", "_op"))
    assert (linked["step"] == linked["step_op"]).all()
    calls = trace.rank_frame("runtime_call", 0)
    linked = kernel.merge(calls, on="correlation", suffixes=("", "_call"))
    assert linked["start_ns_call"].tolist() == linked["launch_ns"].tolist()
    assert len(linked) == len(kernel) == 6
    names = trace.rank_frame("name", 0)
    assert names["name_id"].is_unique
    assert names["name"].is_unique
    assert mentions(trace, "steps 3 and 10-11", "a and b")


def test_of_two_traces_of_a_step_the_later_one_counts(run):
    """Fails if the kernels of a step are there twice."""
    add_trace(run, 0, [3, 4], named=TraceName(3, 4, "late"), sealed_unix_ns=2)
    add_trace(run, 0, [4, 5], named=TraceName(4, 5, "early"), sealed_unix_ns=1)
    trace = load_trace(run)
    assert trace.rank_frame("kernel", 0)["step"].tolist().count(4) == 2
    assert steps_of(trace) == [3, 4, 5]
    assert mentions(trace, "Rank 0", "step 4", "early", "left out", "sealed later")


def _other_hash(run):
    sealed = add_trace(run, 0, [3])
    sealed.write_bytes(sealed.read_bytes() + b"\0")


def _no_description(run):
    description_file(add_trace(run, 0, [3])).unlink()


def _no_clock_readings(run):
    add_trace(run, 0, [3])
    change_manifest(run, 0, clock_pairs="?")


WRONG = {
    "hash": _other_hash,
    "no readable description": _no_description,
    "reading of its clocks": _no_clock_readings,
    "process 1,": lambda run: add_trace(run, 0, [3], pid=1),
    "description of another": lambda run: add_trace(run, 0, [3], last_step=4),
    "torn": lambda run: add_trace(run, 0, [3], cut=-80),
    "contains step 9": lambda run: add_trace(run, 0, [9], named=TraceName(3, 3, "t")),
    "no recorded step": lambda run: add_trace(run, 0, [900], named=TraceName(3, 3, "t")),
    "of rank 1": lambda run: add_trace(run, 0, [3], header={"distributedInfo": {"rank": 1}}),
    "where its times begin": lambda run: add_trace(run, 0, [3], header={"baseTimeNanoseconds": 0}),
    "no events": lambda run: add_trace(run, 0, [3], events=[]),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_trace_that_is_not_what_it_says_is_left_out(run, words):
    """Fails if wrong kernels get into a run, or the reason is not reported, or the rest is lost."""
    WRONG[words](run)
    add_trace(run, 1, [3])
    trace = load_trace(run)
    assert len(trace.rank_frame("op", 0)) == 0
    assert steps_of(trace, rank=1) == [3]
    assert mentions(trace, "Rank 0", words, "left out"), texts(trace.limits)


def test_a_trace_of_a_part_of_its_steps_counts_for_these(run):
    """Fails if a step that was not traced passes for an idle one."""
    add_trace(run, 0, [3, 4, 5], named=TraceName(4, 6, "t"))
    trace = load_trace(run)
    assert trace.kernel_steps == {0: (4, 5)}
    assert steps_of(trace) == steps_of(trace, "op") == [4, 5]
    assert mentions(trace, "for steps 4-6", "contains steps 3-5", "steps 4-5 used")
    assert mentions(trace, "Rank 0", "3 events", "outside of whole steps")


def test_a_trace_that_is_not_sealed_is_named(run):
    """Fails if a trace that was never compressed is lost without a word, or read half written."""
    folder = rank_directory(run, 0) / "traces"
    folder.mkdir()
    raw_file(folder, TraceName(3, 4, "t"), 7).write_text(json.dumps({"traceEvents": []}))
    raw_file(folder, TraceName(5, 6, "u"), 7).with_suffix(".sealing").write_text("{")
    trace = load_trace(run)
    assert trace.kernel_steps is None
    assert mentions(trace, "t of steps 3-4", "not sealed", "meshscope agent --run")
    assert mentions(trace, "u of steps 5-6", "not sealed")


def test_a_time_of_day_that_was_set_does_not_move_the_events(run):
    """Fails if a trace is placed by a reading of the clocks that was not true at its time."""
    jump_ns = 3_600 * 10**9
    end_ns = step_start_ns(20)
    pairs = [[START_NS, START_NS + OFFSET_NS, 50], [end_ns, end_ns + OFFSET_NS + jump_ns, 50]]
    change_manifest(run, 0, clock_pairs=pairs)
    add_trace(run, 0, [4])
    trace = load_trace(run)
    assert trace.rank_frame("op", 0)["start_ns"].tolist() == [step_start_ns(4) + 10_000]


def test_a_trace_without_device_events_has_operators_only(run):
    """Fails if a device that was not recorded is taken for an idle one."""
    add_trace(run, 0, [3], events=events_of([3], device=False))
    trace = load_trace(run)
    assert steps_of(trace, "op") == [3]
    assert trace.kernel_steps == {0: ()}
    assert mentions(trace, "operators are known for step 3 without any device event")


def test_kept_tables_have_the_traces_and_are_stale_when_one_comes(run):
    """Fails if the second look at a run differs from the first, or misses a new trace."""
    add_trace(run, 0, [3])
    first = load_trace(run)
    assert keep(first)
    again = read_kept(run)
    assert again is not None
    assert (texts(again.limits), again.kernel_steps) == (texts(first.limits), first.kernel_steps)
    for name in ("kernel", "op", "runtime_call", "annotation", "name"):
        assert again.tables[name].equals(first.tables[name]), name
    assert first.stored("kernel") is not None
    add_trace(run, 1, [3])
    assert read_kept(run) is None


def test_a_link_in_the_place_of_a_trace_is_not_followed(run, tmp_path):
    """Fails if a run can make its reader open a file that is no part of it."""
    sealed = add_trace(run, 0, [3])
    elsewhere = tmp_path / "elsewhere"
    sealed.rename(elsewhere)
    sealed.symlink_to(elsewhere)
    assert load_trace(run).row_count("kernel") == 0


def test_rows_are_all_within_their_steps(run):
    """Fails if a row keeps the time of day or another step than the one around its launch."""
    add_trace(run, 0, list(range(2, 12)))
    trace = load_trace(run)
    for name in ("op", "runtime_call"):
        rows = trace.rank_frame(name, 0)
        begin = np.array([step_start_ns(step) for step in rows["step"]])
        assert len(rows) >= 10
        assert ((rows["start_ns"] >= begin) & (rows["start_ns"] < begin + STEP_NS)).all()
    kernel = trace.rank_frame("kernel", 0)
    assert kernel[kernel["category"] == "compute"]["dur_ns"].tolist() == [COMPUTE_NS] * 10


def test_a_trace_of_a_later_attempt_is_in_the_steps_of_the_run(run):
    """Fails if a restarted process, which counts from 0 again, puts its kernels in old steps."""
    record(run, part=2, at=100)
    add_trace(run, 0, [4])
    add_trace(run, 0, [103, 104], named=TraceName(3, 4, "again"), part=2)
    trace = load_trace(run)
    kernel = trace.rank_frame("kernel", 0)
    assert trace.kernel_steps == {0: (4, 23, 24)}
    late = kernel[(kernel["step"] == 24) & (kernel["category"] == "compute")]
    assert late["start_ns"].tolist() == [step_start_ns(104) + 65_000]


def test_a_trace_of_another_machine_is_left_out(run):
    """Fails if times of two boots, which do not compare, are on one line."""
    record(run, part=2, at=100)
    change_manifest(run, 0, boot_id="another")
    add_trace(run, 0, [4])
    trace = load_trace(run)
    assert trace.kernel_steps is None
    assert mentions(trace, "Rank 0", "another machine", "left out")
