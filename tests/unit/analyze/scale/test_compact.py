"""Runs in segments of many ranks: the same results from fewer files, whatever happens meanwhile."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest
from tests import deep_run
from tests.fuzz.seeds import SEEDS, write
from tests.texts import texts
from typer.testing import CliRunner

from meshscope.analyze import diagnose
from meshscope.analyze.every_step import steps_to_keep
from meshscope.analyze.load.ingest import Keeping, ingest, open_run
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.output.text import to_text
from meshscope.analyze.scale import compact as compacting
from meshscope.analyze.scale import segments, worker_memory
from meshscope.analyze.scale.compact import compact
from meshscope.analyze.scale.executors import InThisProcess, LocalProcesses
from meshscope.analyze.scale.store import write_summaries
from meshscope.analyze.scale.summary import COUNTED, SCHEMA
from meshscope.analyze.synthetic import SyntheticJob, parse_fault
from meshscope.analyze.synthetic.record import record
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.analyze.synthetic.simulate import make_simulation
from meshscope.analyze.tables import segment_files, table_folder
from meshscope.analyze.tables.part import StepRange
from meshscope.analyze.tables.segment_files import SEGMENTS_NAME, read_list
from meshscope.cli import app
from meshscope.probe.schema.errors import ConfigError, RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout

RANKS, STEPS = 264, 4


def synthetic(folder, *, dp=RANKS // 4):
    """Write a run of many ranks with a slow one; return its path."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=2, dp=dp),
        microbatches=2,
        steps=STEPS,
        jitter_cv=0.01,
        faults=(parse_fault("slow_rank:rank=3,factor=1.4,first_step=1"),),
    )
    return write_run(job, record(make_simulation(job)), None, folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a run with a file for each rank, and the same in segments."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_folder, "MOST_RANK_FILES", 10_000)
        loose = synthetic(folder / "loose")
    packed = folder / "packed" / loose.name
    shutil.copytree(loose, packed)
    found = compact(packed, LocalProcesses(2), nobody)
    assert found.files_before == 4 * RANKS
    assert found.files_after == 4 * 2
    assert not found.dropped_rows
    return loose, packed


@pytest.fixture
def small(tmp_path):
    """Return a run of 8 ranks with a file for each."""
    return synthetic(tmp_path / "small", dp=2)


def nobody(_count):
    """Take no notice of progress."""


def summaries(run, folder):
    """Return the bytes of every file of the summaries of a run."""
    write_summaries(run, InThisProcess(), nobody, folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_summaries_and_diagnosis_are_the_same_to_the_last_bit(runs, tmp_path):
    """A finding would come or go because somebody saved files."""
    loose, packed = runs
    assert summaries(loose, tmp_path / "loose") == summaries(packed, tmp_path / "packed")
    before, after = (diagnose(load_trace(run)) for run in runs)
    assert to_text(after) == to_text(before)
    for name in ("step", "span", "collective", "p2p"):
        assert load_trace(packed).tables[name].equals(load_trace(loose).tables[name])
    assert replace(load_trace(packed), path=loose, tables={}) == replace(
        load_trace(loose), tables={}
    )


def test_segments_are_listed_with_ranks_rows_and_steps(runs):
    """A reader would have to open each file to find one rank or step."""
    _, packed = runs
    files = read_list(packed / "tables").tables["step"]
    assert [(one.first_rank, one.last_rank, one.rows) for one in files] == [
        (0, 255, 256 * STEPS),
        (256, 511, 8 * STEPS),
    ]
    assert {(one.first_step, one.last_step) for one in files} == {(0, STEPS - 1)}
    assert files[1].rank_rows == dict.fromkeys(range(256, 264), STEPS)


def test_a_large_run_is_written_in_segments_at_once(runs, tmp_path):
    """Each worker would read the rows of all ranks to get those of a few."""
    _, packed = runs
    straight = synthetic(tmp_path)
    assert summaries(straight, tmp_path / "a") == summaries(packed, tmp_path / "b")
    names = [file.name for file in sorted((straight / "tables" / "span").iterdir())]
    assert names == ["ranks=00000-00255.parquet", "ranks=00256-00511.parquet"]


@pytest.fixture
def read(monkeypatch):
    """Return the ranks that are read together, each time some are."""
    each = []
    load = segments.load_trace
    monkeypatch.setattr(
        segments,
        "load_trace",
        lambda run, wanted: each.append(wanted.ranks) or load(run, wanted=wanted),
    )
    return each


def test_a_worker_reads_as_many_ranks_as_have_room(runs, tmp_path, monkeypatch, read):
    """A long run would need the memory of 32 ranks in each worker, or tell something else with less."""
    _, packed = runs
    whole = summaries(packed, tmp_path / "whole")
    read.clear()
    monkeypatch.setattr(worker_memory, "MOST_ROWS_AT_ONCE", 500)
    assert summaries(packed, tmp_path / "parts") == whole
    assert sorted(rank for ranks in read for rank in ranks) == list(range(RANKS))
    assert {len(ranks) for ranks in read[:-1]} < set(range(1, 32))


def test_one_rank_is_read_without_the_others(small, monkeypatch):
    """Reading one of many ranks would take the time and memory of all."""
    monkeypatch.setattr(segment_files, "ROW_GROUP_ROWS", 1)
    whole = load_trace(small).tables["span"]
    compact(small, InThisProcess(), nobody)
    from meshscope.probe.reader.wanted import Wanted

    trace = load_trace(small, wanted=Wanted(ranks=[5, 2]))
    assert trace.ranks == (2, 5)
    own = whole.filter(pc.is_in(whole["rank"], value_set=trace.tables["span"]["rank"].unique()))
    assert trace.tables["span"].equals(own)


def test_a_call_that_is_killed_leaves_the_run_as_it_was(small, monkeypatch):
    """A full disk or a reboot would cost the capture."""
    before = to_text(diagnose(load_trace(small)))

    def killed(*_):
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(compacting, "write_list", killed)
        with pytest.raises(OSError, match="killed"):
            compact(small, InThisProcess(), nobody)
    assert to_text(diagnose(load_trace(small))) == before
    with monkeypatch.context() as patch:
        patch.setattr(compacting, "_remove_others", killed)
        with pytest.raises(OSError, match="killed"):
            compact(small, InThisProcess(), nobody)
    assert to_text(diagnose(load_trace(small))) == before


def test_steps_are_removed_only_when_asked_and_every_result_says_so(small):
    """Records would be gone without a word, or a part would be taken for the whole."""
    compact(small, InThisProcess(), nobody)
    found = compact(small, InThisProcess(), nobody, [StepRange(1, 2)])
    assert found.dropped_rows > 0
    trace = load_trace(small)
    assert set(trace.frame("step")["step"]) == {1, 2}
    assert set(trace.frame("collective")["step"]) == {1, 2}
    (limit,) = [one for one in texts(diagnose(trace).limits) if "compact kept steps 1:2" in one]
    assert f"{found.dropped_rows:,} records" in limit
    assert len(list((small / "tables" / "span").iterdir())) == 1


def test_summaries_of_all_steps_stay_when_their_records_go(small, tmp_path, monkeypatch):
    """Fails when a run that keeps its last steps forgets what the others cost, at once or after an upgrade."""
    write_summaries(small, InThisProcess(), nobody, tmp_path)
    compact(small, InThisProcess(), nobody)
    again = write_summaries(small, InThisProcess(), nobody, tmp_path)
    assert not any(one.is_new for one in again.segments)
    whole = again.read(SCHEMA.names).to_pandas()
    counts = [f"{name}_rows" for name in COUNTED]
    for steps, recorded in (([StepRange(1, 2)], {1, 2}), ([StepRange(2, 2)], {2})):
        compact(small, InThisProcess(), nobody, steps)
        monkeypatch.setattr(segments, "SUMMARY_VERSION", segments.SUMMARY_VERSION + 1)
        left = write_summaries(small, InThisProcess(), nobody, tmp_path)
        rows = left.read(SCHEMA.names).to_pandas()
        assert rows.drop(columns=counts).equals(whole.drop(columns=counts))
        assert set(rows.loc[rows["span_rows"] > 0, "step"]) == recorded


def test_several_ranges_of_steps_are_kept(small):
    """Fails when only one incident of a long run can keep its records, or ranges that touch are two."""
    found = compact(
        small, InThisProcess(), nobody, [StepRange(3, 99), StepRange(0, 0), StepRange(2, 2)]
    )
    assert found.kept_steps == (StepRange(0, 0), StepRange(2, 3))
    assert set(load_trace(small).frame("collective")["step"]) == {0, 2, 3}


def test_kernels_are_read_rank_by_rank_from_segments(tmp_path):
    """The rows of a profiler would all be read for each rank, or be those of another."""
    source = write(tmp_path / "job", SEEDS["kineto"]())
    run = ingest(source, Keeping(runs_dir=tmp_path / "runs")).path
    before = load_trace(run)
    kernels = {rank: before.rank_table("kernel", rank) for rank in before.ranks}
    text = to_text(diagnose(before))
    compact(run, InThisProcess(), nobody)
    after = load_trace(run)
    assert after.row_count("kernel") == sum(table.num_rows for table in kernels.values()) > 0
    for rank, table in kernels.items():
        assert after.rank_table("kernel", rank).equals(table)
        some = after.rank_table("kernel", rank, ["start_ns"])
        assert np.array_equal(some["start_ns"], table["start_ns"])
    assert to_text(diagnose(after)) == text


def test_a_torn_segment_or_list_is_said(small):
    """A damaged run would read as one in which nothing happened."""
    compact(small, InThisProcess(), nobody)
    (file,) = (small / "tables" / "span").iterdir()
    content = file.read_bytes()
    os.truncate(file, 50)
    with pytest.raises(RunDirectoryError, match="the table span is damaged"):
        load_trace(small)
    file.write_bytes(content)
    listed = small / "tables" / SEGMENTS_NAME
    for bad in ('{"version": 9}', '{"version": 1, "limits": [], "generation": 0, "tables": 3}'):
        listed.write_text(bad, encoding="utf-8")
        with pytest.raises(RunDirectoryError, match="list of segments cannot be used"):
            load_trace(small)


def test_kept_tables_of_a_recorded_run_are_in_segments(tmp_path, monkeypatch):
    """The second look at a large recorded run would differ from the first, or open thousands of files."""
    monkeypatch.setattr(table_folder, "MOST_RANK_FILES", 1)
    run = deep_run.make_run(tmp_path)
    before = load_trace(run)
    open_run(run, Keeping(runs_dir=tmp_path), nobody)
    assert len(list((run / "tables" / "span").iterdir())) == 1
    after = load_trace(run)
    for name in before.tables:
        assert after.tables[name].equals(before.tables[name])
    assert to_text(diagnose(after)) == to_text(diagnose(before))


def test_a_recorded_run_stays_as_it_is(tmp_path):
    """The record of a job would be rewritten by a tool that only reads it."""
    with pytest.raises(ConfigError, match="the record itself"):
        compact(deep_run.make_run(tmp_path), InThisProcess(), nobody)


@pytest.mark.parametrize("wanted", ["900:1000", "7:3"])
def test_steps_that_are_not_there_remove_nothing(small, wanted):
    """Fails when a mistyped range empties a run for ever."""
    before = to_text(diagnose(load_trace(small)))
    files = sorted((small / "tables").rglob("*.parquet"))
    found = CliRunner().invoke(app, ["compact", str(small), "--keep-steps", wanted])
    assert isinstance(found.exception, ConfigError)
    assert found.exception.where == "--keep-steps"
    assert sorted((small / "tables").rglob("*.parquet")) == files
    assert to_text(diagnose(load_trace(small))) == before


def test_the_command_tells_what_it_did(small):
    """A user would not know what became of the files, or what was lost."""
    found = CliRunner().invoke(app, ["compact", str(small), "--workers", "1", "--format", "json"])
    reported = json.loads(found.stdout)
    assert (reported["files_before"], reported["files_after"], reported["dropped_rows"]) == (
        32,
        4,
        0,
    )
    assert "compacted 8 of 8 ranks" in found.stderr
    again = ["compact", str(small), "--workers", "1", "--keep-steps", "1:"]
    assert "outside steps 1-3 were removed" in CliRunner().invoke(app, again).stdout


def test_the_last_steps_and_those_around_findings_are_kept(tmp_path, monkeypatch):
    """Fails when a rolling window loses the incident that it was kept for, or keeps everything."""
    job = SyntheticJob(
        layout=ParallelLayout(dp=4),
        microbatches=1,
        steps=60,
        jitter_cv=0.005,
        faults=(parse_fault("slow_rank:rank=3,factor=1.4,first_step=20,last_step=29"),),
    )
    run = write_run(job, record(make_simulation(job)), None, tmp_path)
    monkeypatch.setattr(steps_to_keep, "AROUND", 2)
    asked = ["compact", str(run), "--workers", "1", "--keep-last", "5", "--keep-findings"]
    found = json.loads(CliRunner().invoke(app, [*asked, "--format", "json"]).stdout)
    held = {step for first, last in found["kept_ranges"] for step in range(first, last + 1)}
    assert {18, 19, 20, 21, 22, 27, 28, 29, 30, 31, 55, 56, 57, 58, 59} <= held
    assert len(held) < 40
    assert found["dropped_rows"] > 0
    told = CliRunner().invoke(app, ["summarize", str(run), "--workers", "1"]).stdout
    assert "Rank 3 is slow since step 20" in told
    assert "60 steps (0..59)" in told
