"""Synthetic jobs that are written in windows of steps: the same run as the one that is made whole."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from meshscope.analyze.load.ingested import read_ingested
from meshscope.analyze.scale.executors import InThisProcess, LocalProcesses
from meshscope.analyze.synthetic import (
    SyntheticJob,
    make_simulation,
    parse_fault,
    record,
    sharded,
    truth_of,
    write_run,
)
from meshscope.analyze.synthetic.__main__ import main
from meshscope.analyze.synthetic.sharded import write_sharded_run
from meshscope.analyze.tables.segment_files import read_list
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

SEEN = ("step", "microbatch", "span", "collective", "p2p", "group", "run")


def job_of(*faults, **settings):
    """Return a job of 264 ranks, which are two segments, of which the last is short."""
    return SyntheticJob(
        layout=ParallelLayout(tp=2, pp=2, dp=66),
        microbatches=2,
        steps=5,
        jitter_cv=0.02,
        faults=tuple(map(parse_fault, faults)),
        **settings,
    )


@pytest.mark.parametrize("rows", [3_000, 16_000, 1_000_000])
@pytest.mark.parametrize(
    "job",
    [
        job_of("slow_rank:rank=3,factor=1.2,first_step=2"),
        job_of("missing_rank:rank=257", "gc_pause:rank=1,extra_ms=3", dp_buckets=3, segments=2),
        job_of("sequence:cv=0.2", "missing_collectives:rank=4,chance=0.5", tell_sequences=True),
    ],
    ids=["slow", "missing", "sequences"],
)
def test_a_run_of_windows_is_the_run_made_whole(job, rows, tmp_path, monkeypatch):
    """Fails when a large job differs from the small ones whose truth was checked."""
    monkeypatch.setattr(sharded, "ROWS_AT_ONCE", rows)
    truth = truth_of(job)
    whole = write_run(job, record(make_simulation(job)), truth, tmp_path / "whole")
    parts = write_sharded_run(job, truth, tmp_path / "parts", InThisProcess())
    assert parts.name == whole.name
    assert read_list(parts / "tables") == read_list(whole / "tables")
    for name in ("truth.json", "synthetic.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    seen = [read_ingested(run) for run in (whole, parts)]
    assert (seen[0].limits, seen[0].ranks, seen[0].run) == (
        seen[1].limits,
        seen[1].ranks,
        seen[1].run,
    )
    for name in SEEN:
        assert seen[0].tables[name].equals(seen[1].tables[name]), name


def test_several_processes_write_the_same_bytes(tmp_path, monkeypatch):
    """Fails when figures of large jobs depend on how many processes made them."""
    monkeypatch.setattr(sharded, "ROWS_AT_ONCE", 8_000)
    job = job_of()
    one = write_sharded_run(job, None, tmp_path / "one", InThisProcess())
    two = write_sharded_run(job, None, tmp_path / "two", LocalProcesses(2))
    files = sorted(file.relative_to(one) for file in one.rglob("*.parquet"))
    assert files == sorted(file.relative_to(two) for file in two.rglob("*.parquet"))
    assert all((one / file).read_bytes() == (two / file).read_bytes() for file in files)
    assert not list(one.rglob("*.arrow"))


@pytest.mark.parametrize(
    "job",
    [
        job_of("clock_skew:host=1,offset_ms=5"),
        job_of("hang:rank=3,first_step=2"),
        job_of(sample_interval_ns=1_000_000),
    ],
)
def test_what_needs_the_whole_capture_is_refused(job, tmp_path):
    """Fails when a part of such a capture would be missing without a word."""
    with pytest.raises(ConfigError, match="need the whole capture"):
        write_sharded_run(job, None, tmp_path, InThisProcess())
    assert not list(tmp_path.iterdir())


def test_the_command_writes_large_jobs_in_windows(tmp_path):
    """Fails when a job of thousands of ranks needs memory for all its records."""
    command = ["--layout", "dp264", "--steps", "2", "--no-truth", "--workers", "2"]
    app = typer.Typer()
    app.command()(main)
    found = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert "264 ranks; rows: step 528, span" in found.stderr
    assert json.loads((Path(found.stdout.strip()) / "tables/segments.json").read_text())["tables"]
