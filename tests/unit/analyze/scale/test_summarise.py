"""Runs of many ranks: the same summaries wherever they are made, and the right first answer from them."""

import json
import multiprocessing
import os
import signal

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from meshscope.analyze.load.load import load_trace
from meshscope.analyze.scale import segments
from meshscope.analyze.scale.executors import InThisProcess, LocalProcesses, LostWorkError
from meshscope.analyze.scale.slow_ranks import first_answer
from meshscope.analyze.scale.store import read_summaries, write_summaries
from meshscope.analyze.scale.summary import ALONE, summarise
from meshscope.analyze.synthetic import SyntheticJob, parse_fault
from meshscope.analyze.synthetic.record import record
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.analyze.synthetic.simulate import make_simulation
from meshscope.analyze.synthetic.truth import truth_of
from meshscope.cli import app
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

STEPS = 16


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return a run of 8 ranks with a slow one, and what repairing it returns, ns a step."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=1, pp=2, dp=4),
        schedule=ScheduleKind.ONE_F_ONE_B,
        microbatches=8,
        steps=STEPS,
        jitter_cv=0.005,
        faults=(parse_fault("slow_rank:rank=2,factor=1.25,first_step=6"),),
    )
    truth = truth_of(job)
    run = write_run(job, record(make_simulation(job)), truth, tmp_path_factory.mktemp("runs"))
    return run, truth.faults[0].removal_gain_ns


@pytest.fixture
def small_segments(monkeypatch):
    """Make each rank a segment, so that there is something to share out."""
    monkeypatch.setattr(segments, "SEGMENT_RANKS", 1)


def nobody(_count):
    """Take no notice of progress."""


def content(folder):
    """Return the bytes of every file."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_slow_rank_is_found_with_its_first_step_and_its_price(job):
    """The first answer would send people to a healthy machine, or promise too much."""
    run, gain_ns = job
    answer = first_answer(write_summaries(run, InThisProcess(), nobody))
    (one,) = answer.slow
    assert (one.verdict.rank, one.verdict.first_bad_step) == (2, 6)
    assert abs(one.price.return_ns - gain_ns) < 0.01 * answer.step_ns
    assert one.price.most_ns >= one.price.return_ns


def test_summaries_do_not_depend_on_the_number_of_workers(job, tmp_path, small_segments):
    """Two people would get two answers about one run."""
    run, _ = job
    found = []
    for workers in (1, 2, 4):
        executor = InThisProcess() if workers == 1 else LocalProcesses(workers)
        folder = tmp_path / str(workers)
        write_summaries(run, executor, nobody, folder)
        found.append(content(folder))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 8 + 1


def test_a_killed_worker_costs_time_only(job, tmp_path, small_segments):
    """One process without memory would end a post-mortem of hours, or leave ranks out."""
    run, _ = job
    killed = []

    def kill_one(_count):
        if not killed and (alive := multiprocessing.active_children()):
            killed.append(alive[0].pid)
            os.kill(alive[0].pid, signal.SIGKILL)

    write_summaries(run, LocalProcesses(2), kill_one, tmp_path / "killed")
    write_summaries(run, InThisProcess(), nobody, tmp_path / "whole")
    assert killed
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_work_that_kills_its_worker_twice_is_an_error():
    """Ranks would be missing from the answer without a word."""
    with pytest.raises(LostWorkError, match=r"killed twice.*fewer --workers"):
        list(LocalProcesses(2).map(os._exit, [9], nobody))


def test_a_second_call_makes_nothing_anew(job, tmp_path, small_segments):
    """Each question about a large run would take hours again."""
    run, _ = job
    first = write_summaries(run, InThisProcess(), nobody, tmp_path)
    (tmp_path / first.segments[3].name).unlink()
    again = write_summaries(run, InThisProcess(), nobody, tmp_path)
    assert [one.is_new for one in again.segments] == [place == 3 for place in range(8)]
    opened = read_summaries(run, tmp_path)
    assert opened.rows == 8 * STEPS
    assert opened.outline == again.outline
    assert (opened.segments[0].first_step, opened.segments[0].last_step) == (0, STEPS - 1)


def test_rows_are_written_to_be_read_fast(job, tmp_path):
    """Fails when times get dictionaries, or need long to unpack: opening a large run then takes half as long again."""
    made = write_summaries(job[0], InThisProcess(), nobody, tmp_path)
    (group,) = (pq.read_metadata(tmp_path / one.name).row_group(0) for one in made.segments[:1])
    columns = {
        column.path_in_schema: column for column in map(group.column, range(group.num_columns))
    }
    assert {column.compression for column in columns.values()} == {"LZ4"}
    times = {name for name in columns if name.endswith("_s") and name != "wall_s"}
    assert not any("RLE_DICTIONARY" in columns[name].encodings for name in times)
    assert "RLE_DICTIONARY" in columns["wall_s"].encodings


def test_classes_add_up_and_a_row_needs_its_own_rank_alone(job):
    """A summary would lose time, or change with which ranks happen to be read beside it."""
    run, _ = job
    trace = load_trace(run)
    rows = summarise(trace, [5])
    total = np.sum([rows[f"{name}_s"].to_numpy() for name in ALONE], axis=0, dtype=np.float64)
    np.testing.assert_allclose(total, rows["wall_s"].to_numpy(), rtol=1e-6)
    keep = {
        name: trace.tables[name].filter(pc.equal(trace.tables[name]["rank"], 5))
        for name in ("span", "collective", "p2p", "step")
    }
    assert summarise(trace.with_tables(keep), [5]).equals(rows)
    assert rows.nbytes <= 200 * rows.num_rows


def test_the_command_tells_the_answer_and_its_progress(job, tmp_path):
    """A user would wait without a sign of life, or read no answer."""
    run, _ = job
    result = CliRunner().invoke(
        app, ["summarize", str(run), "--workers", "1", "--out", str(tmp_path), "--format", "json"]
    )
    assert json.loads(result.stdout)["slow"][0]["rank"] == 2
    assert "summarized 8 of 8 ranks" in result.stderr
    text = CliRunner().invoke(app, ["summarize", str(run), "--workers", "1"]).stdout
    assert "1. Rank 2 is slow since step 6: its own work takes 2" in text
