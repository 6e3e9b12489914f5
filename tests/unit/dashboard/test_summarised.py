"""A large run opens from its summaries: list, page and tables say the same, and no record is read."""

import json
import os
import shlex
import shutil

import pytest
from dash import html
from plotly.utils import PlotlyJSONEncoder
from typer.testing import CliRunner

from meshscope.analyze.scale.executors import InThisProcess
from meshscope.analyze.scale.first_answer import outlook_of
from meshscope.analyze.scale.store import FOLDER, write_summaries
from meshscope.cli import app
from meshscope.dashboard.callbacks.navigation import exists, page_of
from meshscope.dashboard.pages import summary
from meshscope.dashboard.runs import kept_run, loaded_run, summarised_run
from meshscope.dashboard.runs.store import RunStore
from meshscope.dashboard.serving.app import create_app
from meshscope.dashboard.view.state import parse_query

from .conftest import write_synthetic

STEPS = 120
SLOW = "slow_rank:rank=2,factor=1.4,first_step=40"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with one run that has summaries, and the id of the run."""
    runs = tmp_path_factory.mktemp("runs")
    run_id = write_synthetic(runs, SLOW, steps=STEPS)
    outlook_of(write_summaries(runs / run_id, InThisProcess(), lambda _: None))
    return runs, run_id


@pytest.fixture
def large(monkeypatch):
    """Let the run count as large, and fail if its records are read."""

    def refuse(*_args, **_others):
        raise AssertionError("records were read")

    monkeypatch.setattr(summarised_run, "LARGE_RECORDS", 1)
    monkeypatch.setattr(kept_run, "analysed_run", refuse)
    monkeypatch.setattr(loaded_run, "load_trace", refuse)


def shown(page):
    """Return what the browser gets."""
    return json.dumps(page.to_plotly_json(), cls=PlotlyJSONEncoder)


def test_a_large_run_is_listed_and_opened_from_its_summaries(folder, large):
    """It would take minutes and gigabytes to open a run whose answer is at hand."""
    runs, run_id = folder
    (entry,) = RunStore(runs).entries(max_new=1)
    assert (entry.state, entry.severity, entry.is_summary) == ("ready", "critical", True)
    assert entry.top_finding.startswith("Rank 2 is slow since step 40")
    for name in ("overview", "summary"):
        page = shown(page_of(RunStore(runs), f"/run/{run_id}/{name}", ""))
        assert entry.top_finding in page
        assert "From summaries only" in page
        assert "--steps 40:49" in page
    assert exists(RunStore(runs), f"/run/{run_id}/summary")


def test_the_commands_for_more_can_be_pasted(folder, large, tmp_path, monkeypatch):
    """The reader would paste a command that finds no run from where he is."""
    runs, run_id = folder
    page = summary.layout(RunStore(runs).summarised(run_id), parse_query(""))
    commands = [one.children for one in page._traverse() if isinstance(one, html.Code)]
    monkeypatch.chdir(tmp_path)
    for command, of_run in zip(commands, ("run", "summary"), strict=True):
        done = CliRunner().invoke(app, [*shlex.split(command)[1:], "--format", "json"])
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)[of_run]
        assert told.get("run_id", told.get("run")) == run_id


def test_a_small_run_is_read_whole(folder):
    """A run that fits would lose its account and its causes."""
    runs, run_id = folder
    assert RunStore(runs).summarised(run_id) is None
    assert RunStore(runs).entries(max_new=0)[0].state == "pending"
    assert not exists(RunStore(runs), f"/run/{run_id}/summary")


def test_the_tables_for_programs_are_those_of_the_page(folder, large):
    """A program would plot another run than the page."""
    runs, run_id = folder
    client = create_app(runs).server.test_client()
    address = f"/api/v1/runs/{run_id}"
    reported = client.get(f"{address}/summary.json", headers={"Host": "localhost"}).get_json()
    assert reported["slow"][0]["rank"] == 2
    assert len(reported["trend"]) == STEPS
    assert reported["folder"] == FOLDER
    steps = client.get(f"{address}/summary/steps.csv", headers={"Host": "localhost"}).text
    assert len(steps.splitlines()) == STEPS + 1
    blocks = client.get(f"{address}/summary/blocks.csv", headers={"Host": "localhost"}).text
    assert blocks.startswith("rank,first_step,last_step,steps,wall_s,own_s,exposed_s")
    slow = client.get(f"{address}/summary/slow_ranks.csv", headers={"Host": "localhost"}).text
    assert len(slow.splitlines()) == 2


def test_the_heatmap_shows_the_slow_rank_against_its_stage(folder, large):
    """The page would point at a rank that only waits."""
    runs, run_id = folder
    run = RunStore(runs).summarised(run_id)
    own = run.own_work()
    late = own.values[:, [at for at, step in enumerate(own.steps) if step >= 40]]
    assert own.ranks[int(late.mean(axis=1).argmax())] == 2
    assert ((run.exposed().values >= 0) & (run.exposed().values <= 1)).all()


def test_summaries_older_than_the_run_do_not_stand_for_it(folder, large):
    """A job that goes on would be shown as it was when it was summarised."""
    runs, run_id = folder
    manifest = runs / run_id / FOLDER / "manifest.json"
    before = manifest.stat()
    os.utime(manifest, ns=(1, 1))
    try:
        assert RunStore(runs).summarised(run_id) is None
    finally:
        os.utime(manifest, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_tables_from_summaries_have_a_budget(folder, large, tmp_path):
    """A folder of a thousand large runs would fill the memory of the server."""
    runs, run_id = folder
    for name in ("one", "two", "three"):
        shutil.copytree(runs / run_id, tmp_path / name)
    small = RunStore(tmp_path, budget_bytes=1)
    said = [small.summarised(name).claim for name in ("one", "two", "three", "one")]
    assert len(set(said)) == 1
    assert len(small._summaries._tables) == 1
    assert len(RunStore(tmp_path).entries(max_new=3)) == 3


def test_a_look_at_the_list_reads_no_summary_again(folder, monkeypatch, tmp_path):
    """Large runs without room for all of their tables would be read again by each look at the list."""
    runs, run_id = folder
    for name in ("one", "two"):
        shutil.copytree(runs / run_id, tmp_path / name)
    monkeypatch.setattr(summarised_run, "LARGE_RECORDS", 1)
    reads, real = [], summarised_run.read_summaries
    monkeypatch.setattr(
        summarised_run, "read_summaries", lambda path: reads.append(path.name) or real(path)
    )
    opened = RunStore(tmp_path, budget_bytes=0, patience=0)
    for _ in range(2):  # The first reading writes what it found beside the summaries.
        assert [entry.is_summary for entry in opened.entries(max_new=0)] == [True, True]
    reads.clear()
    for _ in range(3):
        assert [entry.is_summary for entry in opened.entries(max_new=0)] == [True, True]
    assert reads == []
    assert opened.summarised("two").run_id == "two"
    assert opened.summarised("one").run_id == "one"
    assert opened.summarised("one").run_id == "one"
    assert reads in (["two", "one"], ["one"]), "the one that was looked at last stays"
