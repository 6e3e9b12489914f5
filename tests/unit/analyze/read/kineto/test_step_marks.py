"""Steps of files without ProfilerStep: between updates of an optimizer, or by repeated notes."""

import gzip
import json

import pytest
from tests.kineto_files import complete, kernel, launched, operator, step, write
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.read import import_trace

LENGTH = 1000


def note(name, ts, dur):
    """Return one note of the program."""
    return complete("user_annotation", name, ts, dur)


def update(ts, dur=50, name="Adam"):
    """Return one update of an optimizer."""
    return note(f"Optimizer.step#{name}.step", ts, dur)


def backward(ts, dur=300):
    """Return one function of a backward pass."""
    return operator("autograd::engine::evaluate_function: MmBackward0", ts, dur)


def iteration(at, *, updates=(update,)):
    """Return the events of one step that ends with its updates, 60 us apart."""
    own = [operator("aten::mm", at + 10, 200), backward(at + 400), kernel("gemm", at + 20, 500)]
    return [*own, *(make(at + 750 + 60 * place) for place, make in enumerate(updates))]


def steps_of(tmp_path, events):
    """Return start and length of the steps of a file, us, and the limits."""
    trace = import_trace(write(tmp_path / "rank0.json", events))
    frame = trace.frame("step").sort_values("start_ns")
    pairs = zip(frame["start_ns"] // 1000, frame["dur_ns"] // 1000, strict=True)
    return [(int(start), int(dur)) for start, dur in pairs], " ".join(texts(trace.limits))


def test_a_step_lies_between_two_updates(tmp_path):
    """Fails when a file with updates of an optimizer is one step, or its steps are a guess."""
    events = [one for at in range(4) for one in iteration(at * LENGTH)]
    found, said = steps_of(tmp_path, events)
    assert found == [(800 + at * LENGTH, LENGTH) for at in range(3)]
    assert "between the ends of two updates of an optimizer (4 in the file)" in said


def test_several_updates_without_a_backward_pass_between_them_end_one_step(tmp_path):
    """Fails when a step with two optimizers of one kind is two steps."""
    events = [one for at in range(3) for one in iteration(at * LENGTH, updates=(update, update))]
    assert steps_of(tmp_path, events)[0] == [(860, LENGTH), (1860, LENGTH)]


def test_the_optimizer_that_updates_most_rarely_ends_a_step(tmp_path):
    """Fails when each of several updates of a critic before one of its rival is a step."""
    events = []
    for at in range(0, 6 * LENGTH, 2 * LENGTH):
        events += iteration(at, updates=(lambda ts: update(ts, name="SGD"),))
        events += iteration(at + LENGTH)
    events += iteration(6 * LENGTH, updates=(lambda ts: update(ts, name="SGD"),))
    assert steps_of(tmp_path, events)[0] == [(1800, 2 * LENGTH), (3800, 2 * LENGTH)]


def test_updates_inside_of_a_backward_pass_end_no_step(tmp_path):
    """Fails when an optimizer that updates each parameter in the backward pass cuts a step into many."""
    events = []
    for at in range(0, 3 * LENGTH, LENGTH):
        events += [operator("aten::mm", at, 200), backward(at + 300, 600)]
        events += [update(at + 400), update(at + 600)]
    found, said = steps_of(tmp_path, events)
    assert len(found) == 1
    assert "the whole file is step 0" in said


def test_marks_of_the_profiler_come_first(tmp_path):
    """Fails when steps that a file marks are those of its updates."""
    marks = [step(7 + at, at * LENGTH, LENGTH) for at in range(3)]
    events = [one for at in range(3) for one in iteration(at * LENGTH)]
    assert steps_of(tmp_path, marks + events)[0] == [(at * LENGTH, LENGTH) for at in range(3)]


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        ("train_step {}", 950, 3),
        ("iteration", 1000, 3),
        ("forward", 400, 1),
        ("nccl:all_reduce", 990, 1),
    ],
)
def test_notes_around_all_that_a_program_does_are_steps(tmp_path, name, length, expected):
    """Fails when a note around each iteration is not used, or one around a part of it is."""
    events = [
        one
        for at in range(3)
        for one in (
            note(name.format(at), at * LENGTH, length),
            operator("aten::mm", at * LENGTH + 10, 200),
        )
    ]
    found, said = steps_of(tmp_path, events)
    assert len(found) == expected
    assert ("steps begin with the 3 annotations" in said) == (expected == 3)


def without_marks(source, target):
    """Write a file again without the marks of its steps."""
    document = json.loads(gzip.decompress(source.read_bytes()))
    kept = [one for one in document["traceEvents"] if not one["name"].startswith("ProfilerStep")]
    target.write_text(json.dumps(document | {"traceEvents": kept}))
    return target


@pytest.mark.parametrize(
    "name",
    [
        "hta/nccl_parser_config/nccl_data.json.gz",
        "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        "amd_hpctraining/split/rank0_trace.json.gz",
    ],
)
def test_found_steps_are_those_that_real_files_mark(tmp_path, traces_dir, name):
    """Fails when steps by updates are others than the profiler's own: each is as long to 0.1 ms."""
    source = traces_dir / name
    marked = import_trace(source).frame("step")["dur_ns"].tolist()
    found = import_trace(without_marks(source, tmp_path / "rank0.json")).frame("step")["dur_ns"]
    assert found.tolist() == pytest.approx(marked[1:], abs=100_000)


def test_a_slow_rank_is_found_in_files_without_marks(tmp_path, traces_dir):
    """Fails when a job whose profiler was not told of steps is not diagnosed as if it had been."""
    for source in sorted((traces_dir / "amd_hpctraining/split").glob("*.gz")):
        without_marks(source, tmp_path / source.name.removesuffix(".gz"))
    result = diagnose(load_trace(tmp_path))
    assert str(result.findings[0].claim).startswith("Rank 3 is")


def test_time_between_notes_belongs_to_the_step_before_it(tmp_path):
    """Fails when what an engine does between its annotations is in no step, and the steps read as shorter."""
    events = [
        note(f"execute_context_0(0)_generation_{at}({at})", at * LENGTH, 950) for at in range(4)
    ]
    events += [kernel("gemm", at * LENGTH + 20, 500) for at in range(4)]
    found, said = steps_of(tmp_path, events)
    assert found == [(0, LENGTH), (LENGTH, LENGTH), (2 * LENGTH, LENGTH), (3 * LENGTH, 950)]
    assert "steps begin with the 4 annotations" in said


def test_marks_on_the_device_are_steps_where_the_host_is_missing(tmp_path):
    """Fails when a file of device rows alone is one step although its steps are marked."""
    events = [
        complete("gpu_user_annotation", f"ProfilerStep#{at}", at * LENGTH, 900, tid=stream, pid=0)
        for at in range(1, 4)
        for stream in (7, 9)
    ]
    events += [kernel("gemm", at * LENGTH, 500) for at in range(1, 4)]
    found, said = steps_of(tmp_path, events)
    assert found == [(LENGTH, LENGTH), (2 * LENGTH, LENGTH), (3 * LENGTH, 900)]
    assert "3 steps by their marks on the device" in said


@pytest.mark.parametrize("outside", [0, 4])
def test_notes_that_hold_the_launches_are_steps(tmp_path, outside):
    """Fails when an engine that schedules for half of its time is one long step, or a part of a step is one."""
    events = []
    for at in range(4):
        events += [note("execute_context_0(0)_generation_8(8)", at * LENGTH, 400)]
        events += launched("gemm", at * LENGTH + 10, at * LENGTH + 20, 300, 2 * at + 1)
    for at in range(outside):
        events += launched("gemm", at * LENGTH + 500, at * LENGTH + 510, 300, 2 * at + 2)
    found, _ = steps_of(tmp_path, events)
    assert len(found) == (1 if outside else 4)


def working(name, at, dur, number):
    """Return a note of the program with ten launches in it."""
    first = 10 * number + 1
    pairs = (launched("gemm", at + 10 * k, at + 10 * k + 5, 8, first + k) for k in range(10))
    return [note(f"{name} {number}", at, dur), *(one for pair in pairs for one in pair)]


@pytest.mark.parametrize("prefills", [{0, 5}, {0}, {3, 4, 9}])
def test_an_engine_has_steps_of_two_kinds(tmp_path, prefills):
    """Fails when a prefill is part of the decode before it, or an engine with both has no steps."""
    events = []
    for at in range(10):
        events += working("prefill" if at in prefills else "decode", at * LENGTH, 600, at)
    found, said = steps_of(tmp_path, events)
    assert [start for start, _ in found] == [at * LENGTH for at in range(10)]
    assert "'decode # / prefill #'" in said


def test_what_stands_between_most_steps_is_part_of_each(tmp_path):
    """Fails when an update behind each forward pass is a step of another kind."""
    events = []
    for at in range(10):
        events += working("iteration", at * LENGTH, 700, at)
        events += [
            note("update", at * LENGTH + 750, 200),
            *launched("adam", at * LENGTH + 760, at * LENGTH + 770, 50, 900 + at),
        ]
    assert [start for start, _ in steps_of(tmp_path, events)[0]] == [
        at * LENGTH for at in range(10)
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", "data_load"),
        ("data_loading", "data_load"),
        ("get_batch", "data_load"),
        ("save_checkpoint", "checkpoint"),
        ("load_batch_norm", None),
    ],
)
def test_loading_and_saving_are_known_by_the_names_that_programs_give_them(tmp_path, name, kind):
    """Fails when waiting for data reads as a host that does nothing because another loader is used."""
    events = [step(1, 0, LENGTH), note(name, 10, 300), kernel("gemm", 400, 500)]
    spans = import_trace(write(tmp_path / "rank0.json", events)).frame("span")
    assert spans["kind"].astype(str).tolist() == ([kind] if kind else [])
