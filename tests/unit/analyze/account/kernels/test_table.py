"""Kernels by phase, axis and stage, and why a device was idle."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.kernels.idle import device_idle
from meshscope.analyze.account.kernels.places import kernel_places
from meshscope.analyze.account.kernels.table import kernel_report
from meshscope.analyze.output.json import kernels_to_json
from meshscope.analyze.output.render import to_markdown, to_plain
from meshscope.analyze.output.text import kernels_document
from meshscope.probe.schema.layout import ParallelLayout

NAMES = ["gemm", "ncclDevKernel_AllReduce", "aten::mm", "autograd::engine::evaluate_function: Mm",
         "Optimizer.step#Adam.step", "cudaLaunchKernel", "cudaStreamSynchronize", "## forward ##"]  # fmt: skip
GEMM, NCCL, MM, ENGINE, ADAM, LAUNCH, SYNC, FORWARD = range(len(NAMES))


def names(rank=0):
    """Return the rows of the names of a rank."""
    return [{"rank": rank, "name_id": at, "name": name} for at, name in enumerate(NAMES)]


def event(name_id, start_ns, end_ns, **row):
    """Return a row of any table of events."""
    return {"name_id": name_id, "start_ns": start_ns, "dur_ns": end_ns - start_ns, **row}


def test_idle_time_is_split_at_launches_and_at_what_the_host_does():
    """If this fails, a slow host is taken for a device that waits for data, or the reverse."""
    trace = trace_of(
        name=names(),
        op=[event(MM, 100, 140, op_id=0), event(MM, 180, 400, op_id=1)],
        runtime_call=[event(LAUNCH, 130, 140), event(LAUNCH, 395, 400), event(SYNC, 200, 350)],
        kernel=[
            event(GEMM, 0, 100, launch_ns=-10),
            event(GEMM, 150, 170, launch_ns=130, stream=9),
            event(GEMM, 420, 500, launch_ns=395),
            event(GEMM, 100, 600, category="sync"),
        ],
    )
    idle = device_idle(trace, 0, trace.rank_frame("kernel", 0))
    assert (idle.span_ns, idle.busy_ns, idle.idle_ns) == (500, 200, 300)
    assert idle.starved_ns == (130 - 100) + (395 - 170)
    assert idle.launch_bound_ns == (130 - 100) + (200 - 180) + (395 - 350)


def test_without_launches_nothing_is_said_about_the_host():
    """If this fails, a trace without host events says that the host was never late."""
    trace = trace_of(name=names(), kernel=[event(GEMM, 0, 10), event(GEMM, 90, 100)])
    idle = device_idle(trace, 0, trace.rank_frame("kernel", 0))
    assert (idle.idle_ns, idle.starved_ns, idle.launch_bound_ns) == (80, None, None)


def test_phase_comes_from_annotations_and_from_the_thread_of_the_launch():
    """If this fails, kernels of the backward pass are counted in the forward pass."""
    trace = trace_of(
        name=names(),
        op=[event(MM, 0, 10, op_id=0), event(ENGINE, 10, 30, op_id=1, thread=2)],
        runtime_call=[
            event(LAUNCH, 5, 6, correlation=1),
            event(LAUNCH, 15, 16, correlation=2, thread=2),
            event(LAUNCH, 17, 18, correlation=3),
            event(LAUNCH, 45, 46, correlation=4),
        ],
        annotation=[event(ADAM, 40, 50)],
        collective=[{"start_ns": 70, "end_ns": 80, "axis": "dp"}],
        kernel=[
            event(GEMM, 20, 30, launch_ns=5, correlation=1, op_id=0),
            event(GEMM, 30, 40, launch_ns=15, correlation=2, op_id=1),
            event(GEMM, 40, 50, launch_ns=17, correlation=3),
            event(GEMM, 50, 60, launch_ns=45, correlation=4),
            event(GEMM, 60, 70),
            event(NCCL, 70, 80, category="communication"),
        ],
    )
    places = kernel_places(trace, 0, trace.rank_frame("kernel", 0))
    wanted = ["forward", "backward", "other", "optimizer", "unlinked", "communication"]
    assert places["phase"].tolist() == wanted
    assert places["axis"].tolist() == [""] * 5 + ["dp"]


def test_where_the_forward_pass_is_annotated_other_operators_are_not_in_it():
    """If this fails, input preparation counts as forward pass although the trace says better."""
    trace = trace_of(
        name=names(),
        op=[event(MM, 0, 10, op_id=0)],
        annotation=[event(FORWARD, 20, 30)],
        kernel=[
            event(GEMM, 50, 60, launch_ns=5, op_id=0),
            event(GEMM, 60, 70, launch_ns=25, op_id=0),
        ],
    )
    places = kernel_places(trace, 0, trace.rank_frame("kernel", 0))
    assert places["phase"].tolist() == ["other", "forward"]


def test_spans_of_the_probe_give_phase_and_stage():
    """If this fails, kernels of an interleaved schedule are put on the wrong stage."""
    trace = trace_of(
        origin="meshscope",
        layout=ParallelLayout(pp=2, vpp=2),
        name=names(),
        span=[
            {"kind": "forward", "stage": 2, "start_ns": 0, "dur_ns": 10},
            {"kind": "backward", "stage": 0, "start_ns": 10, "dur_ns": 10},
        ],
        kernel=[event(GEMM, 50, 60, launch_ns=5), event(GEMM, 60, 70, launch_ns=15)],
    )
    places = kernel_places(trace, 0, trace.rank_frame("kernel", 0))
    assert places[["phase", "stage"]].to_numpy().tolist() == [["forward", 2], ["backward", 0]]


@pytest.fixture
def two_ranks():
    """Return two ranks, of which the second takes three times as long for a hundred kernels."""
    kernels = [
        event(GEMM, 1000 * at, 1000 * at + factor * (1 + at), rank=rank, launch_ns=1000 * at - 500)
        for rank, factor in ((0, 1), (1, 3))
        for at in range(100)
    ]
    kernels.append(event(NCCL, 200_000, 200_010, rank=1, category="unknown"))
    return trace_of(
        ranks=(0, 1, 2),
        layout=ParallelLayout(pp=3),
        name=names(0) + names(1),
        kernel=kernels,
        step=[{"rank": rank, "start_ns": 0, "dur_ns": 200_000} for rank in (0, 1)],
    )


def test_no_percentile_is_beyond_the_longest(two_ranks):
    """Fails when a kernel that always takes the same time is shown with another one."""
    kernels = [event(GEMM, 5000 * at, 5000 * at + 2501, launch_ns=5000 * at) for at in range(8)]
    steps = [{"rank": 0, "start_ns": 0, "dur_ns": 40_000}]
    trace = trace_of(ranks=(0,), name=names(0), kernel=kernels, step=steps)
    row = kernel_report(trace).kernels.iloc[0]
    assert (row["p50_ns"], row["p99_ns"], row["max_ns"]) == (2501, 2501, 2501)
    spread = kernel_report(two_ranks).kernels
    assert (spread["p99_ns"] <= spread["max_ns"]).all()


def test_sums_shares_percentiles_and_spread(two_ranks):
    """If this fails, the kernel that costs most, or the rank that it is slow on, is not found."""
    report = kernel_report(two_ranks)
    by_stage = report.kernels[report.kernels["name"] == "gemm"].set_index("stage")
    assert by_stage["total_ns"].to_dict() == {0: 5050, 1: 15150}
    assert by_stage.loc[1, "step_frac"] == pytest.approx(15150 / 400_000)
    assert by_stage.loc[1, "busy_frac"] == pytest.approx(15150 / (5050 + 15150 + 10))
    assert by_stage.loc[1, "p50_ns"] == pytest.approx(150, rel=0.012)
    assert by_stage.loc[1, "p99_ns"] == pytest.approx(297, rel=0.012)
    assert by_stage.loc[0, "delay_p50_ns"] == pytest.approx(500, rel=0.012)
    merged = kernel_report(trace_with_one_stage(two_ranks)).kernels.iloc[0]
    assert (merged["ranks"], merged["slowest_rank"]) == (2, 1)
    assert merged["slowest_over_median"] == pytest.approx(15150 / 10100)


def trace_with_one_stage(trace):
    """Return the trace without its layout, so that no stage parts the ranks."""
    return trace_of(
        ranks=trace.ranks, **{name: table.to_pylist() for name, table in trace.tables.items()}
    )


def test_what_is_missing_is_said(two_ranks):
    """If this fails, unseen communication and absent ranks are silently left out."""
    result = kernels_to_json(two_ranks)
    text = " ".join(result["limits"])
    assert "1 of 201 device activities have no launch" in text
    assert "unknown kind" in text
    assert "1 rank without device activities" in text
    assert result["ranks"]["2"]["launch_bound_ns"] is None
    assert result["ranks"]["1"]["unknown_ns"] == 10


def test_json_keeps_its_keys(two_ranks):
    """If this fails, programs that read the result break."""
    result = kernels_to_json(two_ranks, top=1)
    assert set(result) == {
        "version", "ranks", "devices", "kernel_count", "kernels", "places", "peak_flops", "peak_source",
        "operator_count", "operators", "host_waits", "limits", "limit_messages",
        "annotations", "host_operators", "host_time",
    }  # fmt: skip
    assert set(result["operators"][0]) == {
        "operator", "shapes", "calls", "kernels", "total_ns", "busy_frac", "flops_per_s", "peak_frac",
        "over_peak_ns",
    }  # fmt: skip
    assert (result["version"], result["kernel_count"], len(result["kernels"])) == (1, 3, 1)
    assert set(result["kernels"][0]) == {
        "name", "category", "phase", "axis", "stage", "count", "total_ns", "busy_frac", "step_frac",
        "p50_ns", "p99_ns", "max_ns", "linked", "delay_p50_ns", "delay_p99_ns", "ranks",
        "slowest_rank", "slowest_over_median",
    }  # fmt: skip
    stages = [(place["stage"], place["kernels"][0]["total_ns"]) for place in result["places"]]
    assert stages == [(1, 15150), (0, 5050), (1, 10)]


def test_a_host_capture_says_what_it_lacks():
    """If this fails, a capture without kernels ends in an error or looks like an idle device."""
    result = kernels_to_json(trace_of(step=[{"dur_ns": 100}]))
    assert result["kernels"] == []
    assert "no kernels in this capture" in result["limits"][-1]
    assert {row["busy_ns"] for row in result["ranks"].values()} == {None}
    assert to_plain(kernels_document(result)).startswith("No kernels were recorded")


@pytest.mark.parametrize("markdown", [False, True])
def test_text_shows_every_section(two_ranks, markdown):
    """If this fails, a person does not see what the programs see."""
    text = (to_markdown if markdown else to_plain)(kernels_document(kernels_to_json(two_ranks)))
    for words in ("Devices", "Phases", "Kernels: the longest 3 of 3", "unlinked", "(unknown)"):
        assert words in text


@pytest.mark.traces
def test_a_real_trace_agrees_with_the_breakdown(traces_dir):
    """If this fails, two commands give different busy times of the same devices."""
    from meshscope.analyze import load_trace
    from meshscope.analyze.account.kernels.breakdown import device_breakdown

    trace = load_trace(traces_dir / "hta/trace_filter")
    report = kernel_report(trace).ranks.set_index("rank")
    rows = device_breakdown(trace).set_index("rank")
    assert report["idle_ns"].to_dict() == rows["idle_ns"].to_dict()
    assert report["span_ns"].to_dict() == rows["span_ns"].to_dict()
    assert (report["launch_bound_ns"] <= report["starved_ns"]).all()
    assert (report["starved_ns"] <= report["idle_ns"]).all()


def test_a_capture_without_kernels_is_not_searched_rank_by_rank(monkeypatch):
    """If this fails, a page waits for ten seconds to be told that a large run has no kernels."""
    steps = [{"rank": rank, "step": 0, "start_ns": 0, "dur_ns": 10 + rank} for rank in range(3)]
    trace, looks = trace_of(name=names(), step=steps), []
    rows = kernels_to_json(trace)["ranks"]
    assert list(rows) == ["0", "1", "2"]
    assert rows["2"]["device_events"] == 0
    assert rows["2"]["span_ns"] is None
    assert kernel_report(trace).ranks["step_ns"].tolist() == [10, 11, 12]
    look = type(trace).rank_frame
    monkeypatch.setattr(
        type(trace), "rank_frame", lambda own, *args: looks.append(args[1]) or look(own, *args)
    )
    kernels_to_json(trace)
    assert set(looks) <= {0}


def test_shares_of_a_rank_with_several_devices_are_of_all_of_them():
    """Fails when two devices that work at the same time are busy for more than all of their time."""
    step = {"name_id": FORWARD, "step": 0, "start_ns": 0, "dur_ns": 1000}
    trace = trace_of(
        name=names(),
        step=[step],
        kernel=[
            event(GEMM, 0, 600, step=0, category="compute", device=0),
            event(MM, 0, 900, step=0, category="compute", device=1),
            event(MM, 100, 200, step=0, category="sync", device=1),
        ],
    )
    report = kernel_report(trace)
    by_name = report.kernels.set_index("name")
    assert by_name["busy_frac"].to_dict() == {"gemm": 0.4, "aten::mm": 0.6}
    assert by_name["step_frac"].to_dict() == {"gemm": 0.3, "aten::mm": 0.45}
    row = report.ranks.iloc[0]
    assert (row["busy_ns"], row["devices"], row["device_busy_ns"]) == (900, 2, 1500)
