"""HolisticTraceAnalysis on our tables, compared with HolisticTraceAnalysis on the files."""

import gzip
import importlib.metadata
import json
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tests.tables import trace_of

from meshscope.analyze import load_trace
from meshscope.analyze.account.kernels.idle import device_idle
from meshscope.analyze.output import hta
from meshscope.analyze.output.export import export_hta
from meshscope.analyze.output.hta.rows import FIRST_INDEX, TABLES, Symbols, event_rows
from meshscope.probe.schema.errors import ConfigError

OPERATOR = "AddmmBackward0"
STEP = "ProfilerStep"


def need_hta():
    """Skip where the extra is not installed; its imports warn of what is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(
            "hta.trace_analysis", reason="needs the extra hta: pip install 'meshscope[hta]'"
        )


def parsed(files, *, all_steps):
    """Return what HolisticTraceAnalysis makes of trace files by itself."""
    from hta.trace_analysis import TraceAnalysis

    return TraceAnalysis(
        trace_files={rank: str(file) for rank, file in files.items()},
        include_last_profiler_step=all_steps,
    )


@pytest.fixture(scope="module")
def sampled(traces_dir):
    """Return both analyses of two ranks with stamps of whole microseconds."""
    need_hta()
    folder = traces_dir / "hta/trace_filter"
    files = {rank: folder / f"sampled_rank-{rank}.json.gz" for rank in (0, 1)}
    trace = load_trace(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SimpleNamespace(
            trace=trace,
            theirs={steps: parsed(files, all_steps=steps) for steps in (True, False)},
            ours={
                steps: hta.open(trace, include_last_profiler_step=steps) for steps in (True, False)
            },
            everything=hta.open(trace),
        )


def equal(ours, theirs, exact_us=1e-6):
    """Assert that two results are equal, times to the given number of microseconds."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            equal(ours[key], theirs[key], exact_us)
    elif isinstance(theirs, tuple):
        for one, other in zip(ours, theirs, strict=True):
            equal(one, other, exact_us)
    elif isinstance(theirs, pd.DataFrame):
        pd.testing.assert_frame_equal(
            ours.reset_index(drop=True),
            theirs.reset_index(drop=True),
            check_dtype=False,
            atol=exact_us,
            rtol=1e-9,
        )
    else:
        assert ours == theirs


CALLS = {
    "temporal": lambda a: a.get_temporal_breakdown(visualize=False),
    "overlap": lambda a: a.get_comm_comp_overlap(visualize=False),
    "idle": lambda a: a.get_idle_time_breakdown(ranks=[0, 1], visualize=False),
    "kernels": lambda a: a.get_gpu_kernel_breakdown(visualize=False),
    "launches": lambda a: a.get_cuda_kernel_launch_stats(ranks=[0, 1], visualize=False),
    "queue": lambda a: a.get_queue_length_summary(ranks=[0, 1]),
    "queue series": lambda a: a.get_queue_length_time_series(ranks=[0, 1]),
    "bandwidth": lambda a: a.get_memory_bw_summary(ranks=[0, 1]),
    "bandwidth series": lambda a: a.get_memory_bw_time_series(ranks=[0, 1]),
    "steps": lambda a: a.get_profiler_steps(),
    "stragglers": lambda a: a.get_potential_stragglers(),
    "annotations": lambda a: a.get_gpu_user_annotation_breakdown(visualize=False),
}


@pytest.mark.traces
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("all_steps", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_the_file(sampled, name, all_steps):
    """If this fails, users get other numbers from the bridge than from the tool itself."""
    call = CALLS[name]
    equal(call(sampled.ours[all_steps]), call(sampled.theirs[all_steps]))


@pytest.mark.traces
@pytest.mark.filterwarnings("ignore")
def test_without_unlinked_events_keeping_all_changes_nothing(sampled):
    """If this fails, the default of the bridge loses or doubles events."""
    call = CALLS["temporal"]
    equal(call(sampled.everything), call(sampled.theirs[True]))


@pytest.mark.traces
@pytest.mark.filterwarnings("ignore")
def test_critical_path_is_that_of_the_file(sampled):
    """If this fails, host events are missing or nested differently."""
    found = [
        a.critical_path_analysis(rank=0, annotation=STEP, instance_id=0)
        for a in (sampled.ours[True], sampled.theirs[True])
    ]
    ours, theirs = (graph for graph, _ in found)
    assert all(done for _, done in found)
    assert len(ours.nodes) == len(theirs.nodes)
    assert ours.critical_path_nodes == theirs.critical_path_nodes
    equal(ours.get_critical_path_breakdown()["duration"].sum(),
          theirs.get_critical_path_breakdown()["duration"].sum())  # fmt: skip


@pytest.mark.traces
@pytest.mark.filterwarnings("ignore")
def test_kernel_sequences_are_those_of_the_file_and_are_drawn_on_the_right_events(
    sampled, tmp_path
):
    """If this fails, the overlaid trace highlights events that are not part of a pattern."""
    drawn = []
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        analysis = getattr(sampled, name)[True]
        table = analysis.get_frequent_cuda_kernel_sequences(
            OPERATOR, str(tmp_path / name), rank=0, visualize=False, compress_other_kernels=False
        )
        (file,) = (tmp_path / name).iterdir()
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        marked = [(e["name"], e["dur"]) for e in events if "Patterns" in e.get("args", {})]
        drawn.append((table, sorted(marked)))
    equal(drawn[0][0], drawn[1][0])
    assert drawn[0][1] == drawn[1][1] != []


@pytest.mark.traces
@pytest.mark.filterwarnings("ignore")
def test_nanosecond_stamps_differ_by_the_rounding_alone(traces_dir, monkeypatch):
    """If this fails, more than the documented rounding parts the bridge from the file."""
    need_hta()
    file = traces_dir / "hta/nccl_parser_config/nccl_data.json.gz"
    ours = hta.open(file, include_last_profiler_step=True)
    rounded = parsed({0: file}, all_steps=True).get_temporal_breakdown(visualize=False)
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    exact = parsed({0: file}, all_steps=True)
    # A double of this size resolves 0.001 us.
    call = CALLS["temporal"]
    equal(call(ours), call(exact), exact_us=0.01)
    launches = [a.get_cuda_kernel_launch_stats(ranks=[0], visualize=False) for a in (ours, exact)]
    equal(*launches, exact_us=0.01)
    assert call(ours)["compute_time(us)"][0] - rounded["compute_time(us)"][0] == pytest.approx(
        2643.847, abs=0.01
    )


@pytest.mark.traces
@pytest.mark.filterwarnings("ignore")
def test_starved_time_is_host_wait_without_the_way_of_a_launch_to_the_device(traces_dir):
    """If this fails, our launch-bound time and the tool's are about different things."""
    need_hta()
    trace = load_trace(traces_dir / "hta/ns_resolution_trace")
    kernel = trace.rank_frame("kernel", 0).sort_values("start_ns")
    (idle, _) = hta.open(trace).get_idle_time_breakdown(visualize=False)
    host_wait_us = idle.set_index("idle_category")["idle_time"]["host_wait"]
    ours = device_idle(trace, 0, kernel)
    assert ours.launch_bound_ns < ours.starved_ns < host_wait_us * 1000 < ours.idle_ns
    start, launch = (kernel[name].to_numpy(np.int64) for name in ("start_ns", "launch_ns"))
    before = np.append(start[0], start[:-1] + kernel["dur_ns"].to_numpy(np.int64)[:-1])
    late = launch > before
    assert ours.starved_ns == pytest.approx((launch - before)[late].sum(), rel=0.001)


@pytest.mark.traces
@pytest.mark.filterwarnings("ignore")
def test_stream_zero_has_its_steps(traces_dir):
    """If this fails, all kernels of an AMD trace are in no step, as in the parser of the tool."""
    need_hta()
    frame = hta.open(traces_dir / "amd_hpctraining/split", ranks=[2]).t.get_trace(2)
    on_zero = frame[frame["stream"] == 0]
    assert set(on_zero["iteration"]) == {9, 10, 11}


@pytest.mark.traces
@pytest.mark.filterwarnings("ignore")
def test_exported_files_load_there_and_mean_the_same(sampled, tmp_path):
    """If this fails, the files that we export cannot be used, or tell another story."""
    from hta.trace_analysis import TraceAnalysis

    files = export_hta(sampled.trace, tmp_path / "exported")
    again = TraceAnalysis(trace_dir=str(tmp_path / "exported"), include_last_profiler_step=True)
    assert sorted(again.t.trace_files) == [0, 1]
    for name in ("temporal", "queue", "bandwidth", "launches"):
        equal(CALLS[name](again), CALLS[name](sampled.theirs[True]))
    ingested = load_trace(tmp_path / "exported")
    assert ingested.rank_frame("kernel", 1)["dur_ns"].tolist() == (
        sampled.trace.rank_frame("kernel", 1)["dur_ns"].tolist()
    )
    assert len(files) == 2
    shutil.rmtree(tmp_path / "exported")


@pytest.mark.traces
def test_ranks_without_device_events_are_named(traces_dir):
    """If this fails, a rank without a GPU breaks every analysis, or vanishes unseen."""
    need_hta()
    with pytest.raises(ConfigError, match="no rank has device events"):
        hta.open(traces_dir / "hta/cpu_only")
    with pytest.raises(ConfigError, match="rank 7 is not in the run"):
        hta.open(traces_dir / "hta/cpu_only", ranks=[7])
    event = {"name_id": 0, "start_ns": 0, "dur_ns": 1}
    trace = trace_of(
        ranks=(0, 1), name=[{"name_id": 0, "name": "gemm"}], kernel=[{**event, "rank": 0}]
    )
    with pytest.warns(UserWarning, match=r"no device events: ranks \[1\]"):
        assert hta.open(trace).t.get_ranks() == [0]


@pytest.mark.parametrize(
    ("package", "found", "message"),
    [
        ("HolisticTraceAnalysis", None, r"not installed.*meshscope\[hta\]"),
        ("HolisticTraceAnalysis", "0.6.1", "keeps its traces differently"),
        ("pandas", "3.0.0", "does not work with pandas 3.0.0"),
    ],
)
def test_what_does_not_work_is_refused_with_the_remedy(monkeypatch, package, found, message):
    """If this fails, users see a traceback from inside another library."""
    versions = {"HolisticTraceAnalysis": "0.5.0", "pandas": "2.3.3", package: found}

    def version(name):
        if versions[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("meshscope.analyze.output.hta.bridge.version", version)
    with pytest.raises(ConfigError, match=message):
        hta.open(trace_of())


def test_rows_keep_the_order_of_their_source_and_exact_times():
    """If this fails, events that start together are nested differently than in the file."""
    first, second = (1_700_000_000_123_456_789 + n for n in (0, 1))
    trace = trace_of(
        name=[{"name_id": 4, "name": "mm"}, {"name_id": 9, "name": "launch"}],
        op=[{"op_id": 0, "name_id": 4, "start_ns": first, "dur_ns": 9, "position": 5}],
        runtime_call=[
            {"name_id": 9, "start_ns": second, "dur_ns": 3, "correlation": 8, "position": 3}
        ],
        kernel=[{"name_id": 4, "start_ns": second, "dur_ns": 7, "correlation": 8, "position": 4}],
    )
    symbols = Symbols()
    tables = {name: trace.rank_table(name, 0) for name in TABLES}
    rows = event_rows(tables, symbols)
    texts = list(symbols)
    assert [texts[code] for code in rows["name"]] == ["launch", "mm", "mm"]
    assert [texts[code] for code in rows["cat"]] == ["cuda_runtime", "kernel", "cpu_op"]
    assert rows["index"].tolist() == [FIRST_INDEX, FIRST_INDEX + 1, FIRST_INDEX + 2]
    assert rows["start_ns"].tolist() == [second, second, first]
    assert rows["stream"].tolist() == [-1, 7, -1]
    assert "gpu_user_annotation" not in texts
    assert np.array_equal(rows["iteration"], [-1, -1, -1])
