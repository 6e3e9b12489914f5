"""Captures in the forms of other tools."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.tables import trace_of

from meshscope.analyze.export import export_csv, export_perfetto
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
