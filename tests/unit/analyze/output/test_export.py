"""Captures in the forms of other tools."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.tables import trace_of

from meshscope.analyze.output.export import export_csv, export_hta, export_perfetto
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

JOB = Job(layout=ParallelLayout(tp=2, pp=2), steps=3, microbatches=2)
ANALYSED = JOB.steps - 1
"""The first step of a capture of ours is discarded."""


def exported(trace, file: Path) -> list[dict]:
    """Return the events of the written trace."""
    count = export_perfetto(trace, file)
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as stream:
        events = json.load(stream)["traceEvents"]
    assert len(events) == count
    return events


@pytest.fixture
def events(tmp_path: Path) -> list[dict]:
    """Return the events of a small pipeline."""
    return exported(capture(JOB, uniform(10 * MS, 20 * MS)), tmp_path / "trace.json.gz")


def test_every_span_is_there_with_its_times(events):
    """If this fails, the timeline that people look at is not what was recorded."""
    forward = [e for e in events if e["ph"] == "X" and e["name"] == "forward 0" and e["pid"] == 0]
    assert len(forward) == ANALYSED
    assert forward[0]["dur"] == pytest.approx((10 * MS + 2 * JOB.wire_ns) / 1000)


def test_ranks_are_named_and_ordered_by_their_place(events):
    """If this fails, a timeline of many ranks cannot be read."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[3] == "dp0 pp1 tp1 · rank 3"
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert sorted(order, key=order.__getitem__) == [0, 1, 2, 3]


def test_arrows_lead_from_the_send_to_its_receive(events):
    """If this fails, messages are drawn between the wrong ranks or backwards in time."""
    starts = {e["id"]: e for e in events if e["ph"] == "s" and e["name"] == "send"}
    ends = {e["id"]: e for e in events if e["ph"] == "f" and e["id"] in starts}
    assert len(starts) == 2 * 2 * JOB.microbatches * ANALYSED
    assert all(ends[key]["ts"] >= start["ts"] for key, start in starts.items())
    assert {(starts[key]["pid"], ends[key]["pid"]) for key in starts} == {
        (0, 2),
        (1, 3),
        (2, 0),
        (3, 1),
    }


def test_ranks_are_grouped_by_replica_then_stage_then_shard(tmp_path: Path):
    """If this fails, the ranks of one pipeline are scattered over the timeline."""
    layout = ParallelLayout(tp=2, pp=2, dp=2, order="pp-dp-cp-tp")
    trace = trace_of(layout=layout, step=[{"rank": rank, "dur_ns": 10} for rank in range(8)])
    events = exported(trace, tmp_path / "trace.json")
    place = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert sorted(place, key=place.__getitem__) == [0, 1, 4, 5, 2, 3, 6, 7]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[6] == "dp1 pp1 tp0 · rank 6"


def test_both_ends_of_an_arrow_lie_in_a_slice(events):
    """If this fails, the viewer cannot attach the arrow and does not draw it."""
    slices: dict[tuple, list[tuple]] = {}
    for e in events:
        if e["ph"] == "X":
            slices.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    arrows = [e for e in events if e["ph"] in "sf"]
    assert arrows
    for arrow in arrows:
        around = slices[arrow["pid"], arrow["tid"]]
        assert any(
            begin <= arrow["ts"] < end or begin == arrow["ts"] == end for begin, end in around
        )


PROFILED = {
    "name": [{"rank": 3, "name_id": at, "name": name} for at, name in enumerate(["gemm", "mm", "go"])],
    "step": [{"rank": 3, "step": 1, "start_ns": 1000, "dur_ns": 1000}],
    "kernel": [
        {"rank": 3, "step": 1, "name_id": 0, "start_ns": 1500, "dur_ns": 250, "correlation": 9},
        {"rank": 3, "step": -1, "name_id": 0, "start_ns": 5000, "dur_ns": 1, "category": "memcpy",
         "size_bytes": 64},
    ],
    "op": [{"rank": 3, "op_id": 0, "name_id": 1, "start_ns": 1100, "dur_ns": 50, "thread": -5}],
    "runtime_call": [{"rank": 3, "name_id": 2, "start_ns": 1110, "dur_ns": 5, "thread": -5}],
    "annotation": [
        {"rank": 3, "name_id": 1, "start_ns": 1000, "dur_ns": 500, "thread": -5},
        {"rank": 3, "name_id": 1, "start_ns": 1500, "dur_ns": 250, "device": 0, "thread": 7},
    ],
}  # fmt: skip


def test_all_that_a_profiler_recorded_is_in_the_timeline(tmp_path: Path):
    """If this fails, work outside the analysed steps, or on the host, is missing from the picture."""
    events = exported(trace_of(**PROFILED), tmp_path / "trace.json")
    track = {
        e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"
    }
    found = {(track[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert found == {
        ("steps", "step 1", 0.0, 1.0),
        ("stream 7", "gemm", 0.5, 0.25),
        ("stream 7", "gemm", 4.0, 0.001),
        ("stream 7 annotations", "mm", 0.5, 0.25),
        ("thread -5", "mm", 0.0, 0.5),
        ("thread -5", "mm", 0.1, 0.05),
        ("thread -5", "go", 0.11, 0.005),
    }
    copy = next(e for e in events if e["ph"] == "X" and e["ts"] == 4.0)
    assert copy["args"] == {"step": -1, "category": "memcpy", "size_bytes": 64}


def test_profiler_files_have_all_events_and_the_rank_where_it_is_looked_for(tmp_path: Path):
    """If this fails, the files load as rank 0 or lose events."""
    (file,) = export_hta(trace_of(**PROFILED), tmp_path)
    text = gzip.decompress(file.read_bytes()).decode()
    assert '"rank": 3' in text.splitlines()[0]
    content = json.loads(text)
    found = {(e["cat"], e["name"], e["ts"], e["dur"]) for e in content["traceEvents"][1:]}
    assert found == {
        ("kernel", "gemm", 1.5, 0.25),
        ("gpu_memcpy", "gemm", 5.0, 0.001),
        ("cpu_op", "mm", 1.1, 0.05),
        ("cuda_runtime", "go", 1.11, 0.005),
        ("user_annotation", "mm", 1.0, 0.5),
        ("gpu_user_annotation", "mm", 1.5, 0.25),
    }
    assert not list(tmp_path.glob(".*"))


def test_profiler_files_do_not_mix_with_those_of_another_run(tmp_path: Path):
    """If this fails, ranks of an earlier export are loaded as ranks of this run."""
    export_hta(trace_of(**PROFILED), tmp_path)
    export_hta(trace_of(**PROFILED), tmp_path)
    (tmp_path / "rank00009.json.gz").write_bytes(b"")
    with pytest.raises(ConfigError, match="contains other traces"):
        export_hta(trace_of(**PROFILED), tmp_path)


def test_a_host_capture_cannot_become_profiler_files(tmp_path: Path):
    """If this fails, empty files are written that nothing can load."""
    with pytest.raises(ConfigError, match="no rank has events of a profiler"):
        export_hta(capture(JOB, uniform(MS, MS)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_failed_export_leaves_no_file(tmp_path: Path, monkeypatch):
    """If this fails, half a trace is taken for the whole."""
    monkeypatch.setattr("msgspec.json.encode", lambda *_args, **_options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_perfetto(capture(JOB, uniform(MS, MS)), tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_csv_runs_no_formula(tmp_path: Path):
    """If this fails, opening a table in a spreadsheet runs what a trace's author wrote."""
    trace = trace_of(group=[{"group_id": "=cmd()", "axis": "dp", "ranks": [0, 1]}])
    (file,) = export_csv(trace, tmp_path)
    assert pd.read_csv(file)["group_id"].tolist() == ["'=cmd()"]
