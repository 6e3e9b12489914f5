"""Runs made from other tools' traces, of which files were damaged afterwards."""

import os
import shutil
from pathlib import Path

import pytest
from tests.fuzz.seeds import SEEDS, write
from tests.texts import texts

from meshscope.analyze import diagnose
from meshscope.analyze.load.ingest import Keeping, ingest, open_run
from meshscope.probe.schema.errors import MeshscopeError, TraceFormatError


@pytest.fixture
def run(tmp_path):
    """Return a run of two ranks."""
    source = write(tmp_path / "job", SEEDS["kineto"]())
    return ingest(source, Keeping(runs_dir=tmp_path / "runs")).path


def opened(run):
    """Return the trace of a run, as every command opens it."""
    return open_run(run, Keeping(runs_dir=run.parent), lambda _: None)


@pytest.mark.parametrize("table", ["kernel", "step"])
def test_a_torn_file_costs_its_rank_alone(run, table):
    """Fails when one torn file makes all other ranks unreadable."""
    os.truncate(run / "tables" / table / "rank=00001.parquet", 50)
    trace = opened(run)
    assert trace.ranks == (0,)
    for name in trace.tables:
        assert "rank" not in trace.frame(name) or set(trace.frame(name)["rank"]) <= {0}
    (limit,) = [one for one in texts(diagnose(trace).limits) if "Rank 1 is left out" in one]
    assert f"the table {table} is damaged" in limit
    assert ".." not in limit


def test_a_run_without_a_whole_rank_is_refused(run):
    """Fails when a run of which nothing is left is diagnosed as one without events."""
    for file in (run / "tables" / "kernel").iterdir():
        os.truncate(file, 50)
    with pytest.raises(MeshscopeError, match="no rank has all its tables"):
        opened(run)


def test_a_damaged_table_of_all_ranks_refuses_the_run(run):
    """Fails when groups are forgotten without a word."""
    os.truncate(run / "tables" / "group" / "all.parquet", 50)
    with pytest.raises(MeshscopeError, match="the table group is damaged"):
        opened(run)


@pytest.mark.parametrize("content", ["{torn", "{}"])
def test_a_run_with_a_damaged_manifest_is_called_that(run, content):
    """Fails when somebody is told to give a run directory who gave one."""
    (run / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(TraceFormatError, match=r"is a run directory whose manifest\.json"):
        opened(run)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_cannot_be_read_twice_is_called_what_it_is(tmp_path, kind):
    """Fails when a pipe that is there is called missing."""
    place = Path("/dev/null")
    if kind == "pipe":
        place = tmp_path / "pipe"
        os.mkfifo(place)
    with pytest.raises(TraceFormatError, match="is not a regular file"):
        open_run(place, Keeping(runs_dir=tmp_path / "runs"), lambda _: None)


def test_a_run_can_be_made_again(run, tmp_path):
    """Fails when the advice to remove the run and to ingest its source leads nowhere."""
    os.truncate(run / "tables" / "kernel" / "rank=00001.parquet", 50)
    shutil.rmtree(run)
    assert ingest(tmp_path / "job", Keeping(runs_dir=run.parent)).trace.ranks == (0, 1)
