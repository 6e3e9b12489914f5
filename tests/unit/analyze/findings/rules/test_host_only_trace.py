"""Traces without device work: where the hosts were."""

import pytest
from tests.kineto_files import complete, launched, operator, step, write

from meshscope.analyze.account.kernels.host_table import host_report
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.read import import_trace


def _trace(folder, events):
    return import_trace(write(folder / "rank0.json", events))


def _note(name, ts, dur, tid=1):
    return complete("user_annotation", name, ts, dur, tid=tid)


def _found(trace):
    return [one for one in diagnose(trace).findings if one.cause == "host_alone"]


def test_the_operators_of_a_run_on_cpus_are_named(tmp_path):
    """Fails when a host that computes all the time is unknown time without a word."""
    events = [step(1, 0, 1_000), operator("aten::linear", 100, 500), operator("aten::mm", 200, 300)]
    (finding,) = _found(_trace(tmp_path, events))
    said = " ".join(map(str, finding.evidence))
    assert "in operators: 50.0 % of the step" in said
    assert "aten::mm 30.0 % and aten::linear 20.0 %" in said
    assert finding.cost_frac is None


def test_threads_in_one_annotation_at_once_count_once(tmp_path):
    """Fails when two threads of a backend in one operation make it twice as long."""
    events = [step(1, 0, 1_000), _note("gloo:all_reduce", 100, 600, tid=7)]
    events += [_note("gloo:all_reduce", 200, 600, tid=8), _note("gloo:all_reduce", 1_200, 900)]
    (finding,) = _found(_trace(tmp_path, events))
    said = " ".join(map(str, finding.evidence))
    assert "Longest annotations: gloo:all_reduce 70.0 %" in said
    assert "in annotations alone 70.0 %; in nothing recorded 30.0 %" in said


def test_the_parts_of_a_step_add_up(tmp_path):
    """Fails when time in an operator is counted again in the annotation or the call around it."""
    events = [step(1, 0, 1_000), step(2, 1_000, 1_000), _note("forward", 0, 1_500)]
    events += [operator("aten::mm", 100, 500), complete("cuda_runtime", "cudaMalloc", 500, 400)]
    trace = _trace(tmp_path, events)
    report = host_report(trace, step_windows(trace))
    assert sum(report.frac.values()) == pytest.approx(1.0, abs=1e-9)
    assert report.frac == pytest.approx(
        {"operator": 0.25, "call": 0.15, "annotation": 0.35, "function": 0.0, "nothing": 0.25}
    )


def _python(name, ts, dur, tid=1):
    return complete("python_function", name, ts, dur, tid=tid)


def test_a_trace_of_python_functions_alone_names_those_of_the_user(tmp_path):
    """Fails when a program without operators is refused, though its stacks say where it was."""
    events = [_python("train.py(1): <module>", 0, 10_000), _python("train.py(9): load", 0, 8_000)]
    events += [_python("<built-in function sleep>", 1_000, 7_000)]
    (finding,) = _found(_trace(tmp_path, events))
    said = " ".join(map(str, finding.evidence))
    assert "train.py(9): load 80.0 % and train.py(1): <module> 20.0 %" in said
    assert "in nothing recorded 0.0 %" in said


def test_functions_of_a_thread_that_does_no_work_are_not_named(tmp_path):
    """Fails when the thread of a data loader, which waits all the time, leads the list."""
    events = [step(1, 0, 10_000), operator("aten::mm", 0, 2_000)]
    events += [_python("train.py(3): step", 0, 4_000), _python("feed.py(7): get", 0, 9_000, tid=5)]
    trace = _trace(tmp_path, events)
    report = host_report(trace, step_windows(trace))
    assert [one.name for one in report.functions] == ["train.py(3): step"]


def test_a_function_around_several_steps_is_not_the_work_of_one(tmp_path):
    """Fails when the loop around the steps takes more than the whole of one."""
    events = [step(1, 0, 10_000), step(2, 10_000, 10_000), operator("aten::mm", 0, 15_000)]
    events += [_python("train.py(1): main", 0, 20_000), _python("train.py(3): step", 0, 4_000)]
    trace = _trace(tmp_path, events)
    report = host_report(trace, step_windows(trace))
    assert [one.name for one in report.functions] == ["train.py(3): step"]


def test_steps_without_events_do_not_count(tmp_path):
    """Fails when steps that were not traced in depth make the traced ones look empty."""
    events = [step(1, 0, 1_000), step(2, 1_000, 1_000), operator("aten::mm", 1_000, 900)]
    trace = _trace(tmp_path, events)
    assert host_report(trace, step_windows(trace)).frac["operator"] == pytest.approx(0.9)


def test_a_trace_with_device_work_says_nothing_of_it(tmp_path):
    """Fails when a host is said to be alone beside its device."""
    events = [step(1, 0, 10_000), *launched("gemm", 100, 200, 300, 1)]
    assert not _found(_trace(tmp_path, events))
