"""The analysis that is kept on disk: when it is used, and when a run is analysed anew."""

import json
import os
import shutil
import time

import pytest
from tests.unit.dashboard.conftest import write_job, write_synthetic

from meshscope.dashboard import kept_analysis, loaded_run
from meshscope.dashboard.kept_analysis import KeptAnalyses
from meshscope.dashboard.run_files import ANALYSIS
from meshscope.dashboard.store import RunStore

SLOW = "slow_rank:rank=3,factor=1.5"


@pytest.fixture
def elsewhere(tmp_path):
    """Return the user's folder of analyses."""
    return tmp_path / "cache" / "analyses"


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one run that nobody writes any more."""
    write_synthetic(tmp_path / "runs", SLOW)
    age(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def measured(monkeypatch):
    """Return the names of the runs that were measured, one for each time."""
    names, measure = [], loaded_run.account_or_end

    def counted(trace):
        names.append(trace.path.name)
        return measure(trace)

    monkeypatch.setattr(loaded_run, "account_or_end", counted)
    return names


def age(folder):
    """Make all files an hour old."""
    then = time.time() - 3600
    for place in folder.rglob("*"):
        os.utime(place, (then, then))


def opened(folder, elsewhere):
    """Return what a server that has just started says of the only run."""
    store = RunStore(folder, analyses=KeptAnalyses(elsewhere))
    (entry,) = store.entries(max_new=1)
    return store.get(entry.run_id)


def only(folder):
    """Return the only run of a folder."""
    return next(folder.iterdir())


def test_a_server_that_starts_again_measures_nothing(folder, elsewhere, measured):
    """Fails when each restart analyses every run again, or shows something else than before."""
    before = opened(folder, elsewhere)
    after = opened(folder, elsewhere)
    assert len(measured) == 1
    assert (only(folder) / ANALYSIS).is_dir()
    assert not elsewhere.exists()
    assert after.diagnosis.findings == before.diagnosis.findings
    assert after.diagnosis.ledger.equals(before.diagnosis.ledger)
    assert after.version == before.version, "keeping it is no news of the run"
    assert after.path(0).path.pieces.equals(before.path(0).path.pieces)


def test_the_list_needs_no_analysis(folder, elsewhere, measured):
    """Fails when the first list after a start shows runs as pending that were analysed before."""
    run = opened(folder, elsewhere)
    (entry,) = RunStore(folder, analyses=KeptAnalyses(elsewhere)).entries(max_new=0)
    assert (entry.state, entry.layout) == ("ready", "TP1 PP2 DP2")
    assert entry.top_finding == str(run.diagnosis.findings[0].claim)
    assert len(measured) == 1


def test_it_is_for_its_user_alone(folder, elsewhere):
    """Fails when others can read what was analysed of a run that they cannot read."""
    opened(folder, elsewhere)
    kept = only(folder) / ANALYSIS
    assert {place.stat().st_mode & 0o077 for place in (kept, *kept.iterdir())} == {0}


def test_a_run_that_cannot_be_written_is_kept_elsewhere(tmp_path, elsewhere, measured, monkeypatch):
    """Fails when a read-only run, or a trace of another tool, is analysed at each start."""
    write_job(tmp_path / "runs" / "job")
    age(tmp_path / "runs")
    opened(tmp_path / "runs", elsewhere)
    opened(tmp_path / "runs", elsewhere)
    assert len(measured) == 1
    assert len(list(elsewhere.iterdir())) == 1
    assert sorted(one.suffix for one in only(tmp_path / "runs").iterdir()) == [".parquet", ".yaml"]
    monkeypatch.setattr(kept_analysis, "_MOST_ELSEWHERE", 1)
    write_job(tmp_path / "more" / "job", steps=5)
    age(tmp_path / "more")
    opened(tmp_path / "more", elsewhere)
    assert len(list(elsewhere.iterdir())) == 1, "the oldest goes"


def test_no_place_to_keep_it_is_no_error(tmp_path, measured):
    """Fails when a dashboard without a folder for caches shows no runs."""
    write_job(tmp_path / "runs" / "job")
    age(tmp_path / "runs")
    (tmp_path / "file").write_text("no folder")
    opened(tmp_path / "runs", tmp_path / "file" / "analyses")
    opened(tmp_path / "runs", tmp_path / "file" / "analyses")
    assert len(measured) == 2


def test_nothing_is_kept_of_a_run_that_is_written(tmp_path, elsewhere, measured):
    """Fails when the dashboard writes into a capture that goes on, or shows an old state of it."""
    write_job(tmp_path / "runs" / "job")
    opened(tmp_path / "runs", elsewhere)
    assert not elsewhere.exists()
    opened(tmp_path / "runs", elsewhere)
    assert len(measured) == 2


def test_a_copy_is_the_same_run(folder, elsewhere, measured):
    """Fails when a copied run is analysed again though each byte is the same."""
    opened(folder, elsewhere)
    for place in folder.rglob("*"):
        os.utime(place, (time.time() - 60, time.time() - 60))
    opened(folder, elsewhere)
    assert len(measured) == 1


def test_other_contents_are_analysed(folder, elsewhere, measured):
    """Fails when a run that changed is shown as it was."""
    run = only(folder)
    opened(folder, elsewhere)
    other = folder.parent / "other"
    write_synthetic(other, "slow_rank:rank=1,factor=2")
    shutil.rmtree(run / "tables")
    shutil.move(only(other) / "tables", run / "tables")
    age(folder)
    assert "Rank 1" in str(opened(folder, elsewhere).diagnosis.findings[0].claim)
    assert len(measured) == 2


@pytest.mark.parametrize("key", ["code", "name", "content"])
def test_what_another_version_wrote_does_not_count(folder, elsewhere, measured, key):
    """Fails when an analysis of an older program, another run or other files is shown."""
    opened(folder, elsewhere)
    place = only(folder) / ANALYSIS / "analysis.json"
    facts = json.loads(place.read_text())
    place.write_text(json.dumps(facts | {key: "other", "stamp": None}))
    opened(folder, elsewhere)
    assert len(measured) == 2
    assert json.loads(place.read_text()) == facts, "it is written anew"


@pytest.mark.parametrize("content", ["", "{}", "\0" * 99])
def test_a_damaged_one_is_made_anew(folder, elsewhere, measured, content):
    """Fails when a torn file takes a run down."""
    opened(folder, elsewhere)
    (only(folder) / ANALYSIS / "analysis.json").write_text(content)
    assert opened(folder, elsewhere).diagnosis.findings
    assert len(measured) == 2


def test_a_pickle_is_never_opened(folder, elsewhere, measured, tmp_path):
    """Fails when something that runs code is read from a run."""
    opened(folder, elsewhere)
    for place in (only(folder) / ANALYSIS).iterdir():
        place.write_bytes(b"cos\nsystem\n(S'touch " + os.fsencode(tmp_path / "ran") + b"'\ntR.")
    opened(folder, elsewhere)
    assert len(measured) == 2
    assert not (tmp_path / "ran").exists()


def test_a_link_is_not_followed(folder, elsewhere, tmp_path, measured):
    """Fails when an analysis outside of the run is shown, or written over."""
    opened(folder, elsewhere)
    kept = only(folder) / ANALYSIS
    shutil.move(kept, tmp_path / "outside")
    kept.symlink_to(tmp_path / "outside")
    before = (tmp_path / "outside" / "analysis.json").read_bytes()
    (entry,) = RunStore(folder, analyses=KeptAnalyses(elsewhere)).entries(max_new=1)
    assert (entry.state, "link to outside" in entry.error) == ("unreadable", True)
    assert (tmp_path / "outside" / "analysis.json").read_bytes() == before
