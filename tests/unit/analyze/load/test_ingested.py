"""Traces of other tools kept as run directories."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.load.ingested import find_ingested, run_name, write_ingested
from meshscope.analyze.output.json import diagnosis_to_json
from meshscope.analyze.tables.table_folder import drafted
from meshscope.probe.schema.errors import FormatVersionError, RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.rundir import list_runs
from meshscope.probe.schema.tables import TABLES


@pytest.fixture
def trace():
    """Return a trace as an importer would give it."""
    job = Job(layout=ParallelLayout(pp=2, dp=2), steps=3)
    found = capture(job, uniform(10 * MS, 20 * MS))
    return dataclasses.replace(found, origin="kineto", limits=("one thing was missing",))


def store(trace, runs_dir):
    """Keep a trace as a run; return its path."""
    with drafted(runs_dir) as draft:
        return write_ingested(trace, draft, "a" * 64, name="job", source_bytes=1)


def test_what_was_stored_comes_back(trace, tmp_path: Path):
    """If this fails, a diagnosis of the stored tables differs from that of the source."""
    again = load_trace(store(trace, tmp_path))
    assert (again.origin, again.ranks, again.layout) == (trace.origin, trace.ranks, trace.layout)
    assert texts(again.limits) == texts(trace.limits)
    assert {name: again.row_count(name) for name in trace.tables} == {
        name: trace.row_count(name) for name in trace.tables
    }
    first, second = (diagnosis_to_json(diagnose(one)) for one in (trace, again))
    assert first["causes"] == second["causes"]
    assert first["waterfall"] == second["waterfall"]


def test_tables_are_for_their_user_alone(trace, tmp_path: Path):
    """Fails when tables of other tools' traces can be read by others once their run directory is opened to them."""
    kept = store(trace, tmp_path)
    modes = {path.stat().st_mode & 0o777 for path in (kept, *kept.rglob("*"))}
    assert modes == {0o700, 0o600}


def test_impossible_times_are_left_out_of_stored_runs_too(trace, tmp_path: Path):
    """Fails when a stored run is believed what the same rows of a capture are not."""
    frame = trace.frame("step").copy()
    frame.loc[frame.index[-1], "dur_ns"] = -5 * MS
    table = TABLES["step"].conform(pa.Table.from_pandas(frame, preserve_index=False))
    again = load_trace(store(trace.with_tables({"step": table}), tmp_path))
    assert again.row_count("step") == len(frame) - 1
    assert texts(again.limits)[-1] == "1 row of step with impossible times left out"
    assert sum(bar.frac for bar in diagnose(again).waterfall) == pytest.approx(1, abs=1e-9)


def test_a_run_is_found_by_its_content(trace, tmp_path: Path):
    """If this fails, the same traces are parsed again, or others are taken for them."""
    run = store(trace, tmp_path)
    assert list_runs(tmp_path) == [run]
    assert find_ingested(tmp_path, "a" * 64) == run
    assert find_ingested(tmp_path, "b" * 64) is None
    assert find_ingested(tmp_path / "nowhere", "a" * 64) is None


def test_two_that_ingest_the_same_at_once_share_the_run(trace, tmp_path: Path):
    """If this fails, the slower of two jobs of a batch ends in an error."""
    with drafted(tmp_path) as slower:
        first = store(trace, tmp_path)
        assert slower.is_dir(), "a draft that is in use was removed"
        second = write_ingested(trace, slower, "a" * 64, name="job", source_bytes=1)
    assert first == second
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_damaged_table_is_named(trace, tmp_path: Path):
    """If this fails, a torn table ends in a traceback, or in fewer rows without a word."""
    run = store(trace, tmp_path)
    file = run / "tables" / "collective" / "rank=00002.parquet"
    os.truncate(file, file.stat().st_size // 2)
    found = load_trace(run)
    assert set(trace.ranks) - set(found.ranks) == {2}
    assert any(
        "Rank 2 is left out: the table collective is damaged" in x for x in texts(found.limits)
    )


def test_a_run_that_cannot_be_written_whole_is_removed(trace, tmp_path: Path, monkeypatch):
    """If this fails, a full disk leaves half a run that later reads as a whole one."""

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    with pytest.raises(OSError, match="No space"):
        store(trace, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_program_left_is_removed(trace, tmp_path: Path):
    """If this fails, every interrupted ingest takes its disk space for ever."""
    left = tmp_path / ".draft-killed"
    (left / "tables").mkdir(parents=True)
    store(trace, tmp_path)
    assert not left.exists()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("rank0.pt.trace.json.gz", "rank0"),
        ("my job (2)", "my-job-2"),
        ("...", "trace"),
        ("\x1b[31mred.json", "31mred"),
        ("x" * 300, "x" * 80),
    ],
)
def test_runs_have_names_that_people_recognise(source, name):
    """If this fails, a run is a hash, or its name is none that a folder may have."""
    assert run_name(source) == name


def test_a_run_of_another_format_is_refused(trace, tmp_path):
    """Tables whose columns mean something else would be read as ours."""
    manifest = store(trace, tmp_path) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format_version": 99}))
    with pytest.raises(FormatVersionError, match="99"):
        load_trace(manifest.parent)


def test_a_run_without_its_tables_says_so(trace, tmp_path):
    """A sound manifest would be called damaged, and the user would look in the wrong place."""
    run = store(trace, tmp_path)
    shutil.rmtree(run / "tables")
    with pytest.raises(RunDirectoryError, match="its tables are missing"):
        load_trace(run)
