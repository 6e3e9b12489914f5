"""Traces of other tools kept as run directories."""

import dataclasses
import os
from pathlib import Path

import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.exchange import diagnosis_to_json
from meshscope.analyze.ingest import ingest, understood
from meshscope.analyze.ingested import content_key, find_ingested, write_ingested
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture
def trace():
    """Return a trace as an importer would give it."""
    job = Job(layout=ParallelLayout(pp=2, dp=2), steps=3)
    found = capture(job, uniform(10 * MS, 20 * MS))
    return dataclasses.replace(found, origin="kineto", limits=("one thing was missing",))


def test_what_was_stored_comes_back(trace, tmp_path: Path):
    """If this fails, a diagnosis of the stored tables differs from that of the source."""
    again = load_trace(write_ingested(trace, tmp_path, "k" * 64))
    assert (again.origin, again.ranks, again.layout) == (trace.origin, trace.ranks, trace.layout)
    assert again.limits == trace.limits
    assert {name: again.tables[name].num_rows for name in trace.tables} == {
        name: table.num_rows for name, table in trace.tables.items()
    }
    first, second = (diagnosis_to_json(diagnose(one)) for one in (trace, again))
    assert first["causes"] == second["causes"]
    assert first["waterfall"] == second["waterfall"]


def test_a_run_is_found_by_its_content(trace, tmp_path: Path):
    """If this fails, the same traces are parsed again, or others are taken for them."""
    run = write_ingested(trace, tmp_path, "a" * 64)
    assert find_ingested(tmp_path, "a" * 64) == run
    assert find_ingested(tmp_path, "b" * 64) is None
    assert find_ingested(tmp_path / "nowhere", "a" * 64) is None


def test_the_key_follows_names_and_contents(tmp_path: Path):
    """If this fails, a trace that was written anew is answered from the old one."""
    (tmp_path / "a").write_bytes(b"one")
    key, size = content_key([tmp_path / "a"])
    (tmp_path / "b").write_bytes(b"one")
    assert size == 3
    assert content_key([tmp_path / "b"])[0] != key
    (tmp_path / "a").write_bytes(b"two")
    assert content_key([tmp_path / "a"])[0] != key


def test_a_damaged_table_is_named(trace, tmp_path: Path):
    """If this fails, a torn cache ends in a traceback, or in fewer rows."""
    run = write_ingested(trace, tmp_path, "a" * 64)
    file = run / "tables" / "collective" / "rank=00002.parquet"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(MeshscopeError, match="table collective is damaged"):
        load_trace(run)


def test_a_run_that_cannot_be_written_whole_is_removed(trace, tmp_path: Path, monkeypatch):
    """If this fails, a full disk leaves half a run that later reads as a whole one."""

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    with pytest.raises(OSError, match="No space"):
        write_ingested(trace, tmp_path, "a" * 64)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_read_is_an_error(tmp_path: Path):
    """If this fails, a wrong path makes an empty run."""
    with pytest.raises(MeshscopeError, match="no file to read"):
        ingest(tmp_path / "none*.json", tmp_path / "runs")


@pytest.mark.traces
def test_a_real_set_is_parsed_once_and_explained(traces_dir: Path, tmp_path: Path):
    """If this fails, people cannot see what was understood of their traces."""
    source = traces_dir / "amd_hpctraining" / "split"
    first, second = (ingest(source, tmp_path) for _ in range(2))
    assert (first.reused, second.reused) == (False, True)
    assert first.path == second.path
    lines = understood(second.trace)
    assert "ranks: 4 of 4" in lines
    assert any("axis dp" in line and "only group" in line for line in lines)
