"""Categories and links of older profilers and of other devices."""

import json

import pytest
from tests.kineto_files import call, complete, kernel, launched, operator, step, write
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.account.kernels.operators import operator_report
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError


def limits(trace, *words):
    """Say whether one limit has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def test_operators_are_found_by_nesting_where_ids_are_correlations(tmp_path):
    """Fails when a trace of PyTorch 2.0 has no operators, and no speed of its products."""
    events = [step(1, 0, 10_000)]
    shapes = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["c10::Half", "c10::Half"]}
    for at in range(20):
        c = 5_000 + at
        events += [complete("cpu_op", "aten::linear", at * 400 + 5, 300, **{"External id": at + 1})]
        events += [operator("aten::mm", at * 400 + 10, 200, **shapes)]
        events += [call("cudaLaunchKernel", at * 400 + 50, 5, c)]
        events += [kernel("gemm", at * 400 + 80, 300, c, **{"External id": c})]
    report = operator_report(import_trace(write(tmp_path / "rank0.json", events)))
    (row,) = report.operators.to_dict("records")
    assert (row["operator"], row["calls"]) == ("aten::mm", 20)
    assert row["flops_per_s"] == pytest.approx(2 * 512**3 / 300e-6)


def test_operators_of_another_thread_are_not_around_a_launch(tmp_path):
    """Fails when the thread of a loader is said to have launched the kernels of the main thread."""
    events = [complete("cpu_op", "aten::stack", 0, 1_000, tid=2), *launched("gemm", 50, 60, 10, 1)]
    assert import_trace(write(tmp_path / "rank0.json", events)).frame("kernel")[
        "op_id"
    ].tolist() == [-1]


@pytest.mark.parametrize("category", ["Operator", "cpu_op"])
def test_annotations_that_are_written_as_operators(tmp_path, category):
    """Fails when loading data, in traces of the first profilers, is called launch overhead."""
    events = []
    for at in range(4):
        t = at * 100_000
        events += [complete(category, f"ProfilerStep#{at}", t, 99_990)]
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events += [complete(category, name, t + 10, 50_000)]
        events += [complete(category, "aten::stack", t + 20, 49_000)]
        events += launched("conv", t + 50_110, t + 50_120, 49_000, at + 1)
    found = diagnose(load_trace(write(tmp_path / "rank0.json", events))).findings
    assert found[0].kind == "data_stall"
    assert found[0].cost_frac == pytest.approx(0.50, abs=0.001)


def test_regions_of_a_program_are_annotations_in_the_first_traces_only(tmp_path):
    """Fails when a region that the program named counts as an operator, or a backward node as a region."""
    events = [
        complete("Operator", "my region", 0, 100),
        complete("Operator", "MulBackward0", 10, 20),
        *launched("gemm", 15, 40, 10, 1),
    ]
    trace = import_trace(write(tmp_path / "rank0.json", events))
    names = trace.frame("name").set_index("name_id")["name"]
    assert trace.frame("annotation")["name_id"].map(names).tolist() == ["my region"]
    assert trace.frame("op")["name_id"].map(names).tolist() == ["MulBackward0"]


def test_device_events_of_an_unknown_category_are_counted_and_kept(tmp_path):
    """Fails when the device of a new backend looks idle because its category is not known."""
    events = [step(1, 0, 1_000), operator("aten::mm", 10, 20)]
    events += [complete("npu_jobs", "job", 80, 300, pid=0, device=0, stream=1, correlation=4)]
    events += [complete("odd_marks", "mark", 80, 300)]
    trace = import_trace(write(tmp_path / "rank0.json", events))
    assert trace.frame("kernel")["category"].tolist() == ["unknown"]
    assert limits(trace, "1 event of the unknown category 'npu_jobs'", "1 ran on a device")
    assert limits(trace, "1 event of the unknown category 'odd_marks'")


def test_device_events_of_mtia_are_read(tmp_path):
    """Fails when MTIA's own categories are taken for a trace without a device."""
    events = [step(1, 0, 1_000), complete("mtia_runtime", "runtimeLaunch", 50, 5, correlation=3)]
    events += [complete("mtia_ccp_events", "job", 80, 300, pid=0, device=0, correlation=3)]
    kernels = import_trace(write(tmp_path / "rank0.json", events)).frame("kernel")
    assert kernels["category"].tolist() == ["compute"]
    assert kernels["launch_ns"].tolist() == [50_000]


def test_device_rows_of_the_ascend_profiler_are_read_by_their_task_type(tmp_path):
    """Fails when a trace of torch_npu is said to have no device events."""
    rows = [("MatMulV2", "AI_CORE"), ("hcom_allReduce_", "COMMUNICATION"), ("Copy", "MEMCPY_ASYNC"),
            ("Wait", "EVENT_WAIT")]  # fmt: skip
    events = [
        {"ph": "M", "name": "process_name", "pid": 8, "tid": 0, "args": {"name": "Ascend Hardware"}}
    ]
    events += [complete("cpu_op", "ProfilerStep#1", "1000.000", 9_000.0)]
    for at, (name, task) in enumerate(rows):
        args = {"Stream Id": 3, "Task Type": task, "Task Id": at}
        row = complete("", name, f"{1100 + at * 400}.000", 300.0, tid=3, pid=8, **args)
        del row["cat"]
        events.append(row)
    (tmp_path / "rank0.json").write_text(json.dumps(events))
    trace = import_trace(tmp_path / "rank0.json")
    assert trace.frame("kernel")["category"].tolist() == [
        "compute",
        "communication",
        "memcpy",
        "sync",
    ]
    assert limits(trace, "Ascend profiler")


def test_launches_without_device_activity_are_a_finding(tmp_path):
    """Fails when a profiler that collected nothing of the device is taken for an idle one."""
    events = [step(1, 0, 10_000)]
    events += [call("cudaLaunchKernel", at * 400, 5, at + 1) for at in range(20)]
    trace = load_trace(write(tmp_path / "rank0.json", events))
    found = [one for one in diagnose(trace).findings if one.cause == "device_activity"]
    assert [one.kind for one in found] == ["missing_data"]
    assert "20 launches" in str(found[0].claim)
    assert limits(trace, "20 launches but no device events")


def test_the_tail_of_the_step_before_is_in_no_step(tmp_path):
    """Fails when kernels launched before the file began make its first step longer."""
    events = [step(6, 0, 42_700), call("cudaDeviceSynchronize", 50, 13_000)]
    events += [kernel("before", -50 + at * 100, 100, 90_000 + at) for at in range(130)]
    for at in range(300):
        events += launched("gemm", 13_210 + at * 60, 13_300 + at * 97, 97, at + 1)
    trace = load_trace(write(tmp_path / "rank0.json", events))
    (row,) = trace.frame("step").to_dict("records")
    assert (row["start_ns"], row["dur_ns"]) == (12_950_000, 29_750_000)
    kernels = trace.frame("kernel")
    names = trace.frame("name").set_index("name_id")["name"]
    steps = kernels.groupby(kernels["name_id"].map(names))["step"].unique()
    assert [steps["before"].tolist(), steps["gemm"].tolist()] == [[-1], [6]]


def test_work_of_an_unknown_category_is_not_called_communication(tmp_path):
    """Fails when device events of a category that nobody knows are said to communicate and compute in one."""
    events = [step(1, 0, 10_000)]
    for at in range(20):
        events += launched("gemm", at * 400 + 50, at * 400 + 80, 300, at + 1)
        args = {"device": 0, "stream": 3, "correlation": at + 1}
        events += [complete("hpu_thing", "job", at * 400 + 90, 100, pid=0, tid=3, **args)]
        events += [operator("aten::mm", at * 400 + 10, 200)]
    trace = import_trace(write(tmp_path / "rank0.json", events))
    assert limits(trace, "hpu_thing", "20")
    assert not limits(trace, "communicate and compute")


def test_rows_of_ascend_without_a_category_are_known_by_name(tmp_path):
    """Fails when the steps and the collectives of an Ascend profile are not used."""
    rows = [
        {"ph": "X", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 0, "dur": 900},
        {"ph": "X", "name": "MatMul", "pid": 2, "tid": 5, "ts": 10, "dur": 300,
         "args": {"Task Type": "AI_CORE", "Stream Id": 5}},
        {"ph": "X", "name": "hcom_allReduce__1_0_1", "pid": 3, "tid": 2, "ts": 400, "dur": 200},
    ]  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(rows))
    trace = import_trace(path)
    assert trace.frame("step")["step"].tolist() == [3]
    assert sorted(trace.frame("kernel")["category"].astype(str)) == ["communication", "compute"]


def test_a_trace_of_another_tool_is_not_recorded_again(tmp_path):
    """Fails when the user of another framework is told to let a profiler finish that he does not use."""
    rows = [{"ph": "X", "name": "fusion.12", "pid": 1, "tid": 1, "ts": 0, "dur": 9}]
    path = tmp_path / "host.trace.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    with pytest.raises(TraceFormatError, match="for JAX, record with nsys"):
        import_trace(path)


@pytest.mark.parametrize("listed", ["{},toplevel", "toplevel, {}", "python_function,{}"])
def test_an_event_of_several_categories_counts_by_the_one_that_says_most(tmp_path, listed):
    """Fails when kernels with a second category are of unknown kind, or their steps and launches are lost."""
    events = [step(1, 0, 1_000), step(2, 1_000, 1_000)]
    events += launched("gemm", 10, 20, 300, 1) + launched("gemm", 1_010, 1_020, 300, 2)
    alone = import_trace(write(tmp_path / "rank0.json", events))
    both = [event | {"cat": listed.format(event["cat"])} for event in events]
    (tmp_path / "both").mkdir()
    found = import_trace(write(tmp_path / "both" / "rank0.json", both))
    for name in ("step", "kernel", "runtime_call"):
        assert found.frame(name).equals(alone.frame(name)), name


def test_calls_of_two_processes_are_two_ranks(tmp_path):
    """Fails when a file of two ranks, without operators, gives one rank whose device does the work of both."""
    events = [step(0, 0, 1_000), *launched("gemm", 5, 100, 600, 1)]
    other = [event | {"pid": event["pid"] + 1} for event in launched("gemm", 5, 100, 300, 2)]
    with pytest.raises(TraceFormatError, match="several processes"):
        import_trace(write(tmp_path / "rank0.json", [*events, *other]))
