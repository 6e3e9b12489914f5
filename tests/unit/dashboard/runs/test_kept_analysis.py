"""The analysis that is kept on disk: when it is used, and when a run is analysed anew."""

import hashlib
import json
import os
import shutil
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.dashboard.conftest import write_job, write_synthetic

from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.runs import kept_analysis, loaded_run
from meshscope.dashboard.runs.kept_analysis import KeptAnalyses
from meshscope.dashboard.runs.loaded_run import line_of
from meshscope.dashboard.runs.run_files import ANALYSIS, SourceState, source_state
from meshscope.dashboard.runs.store import RunStore

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


STATE = SourceState("other", is_settled=True)


def settle(folder, elsewhere):
    """Have what is kept of the only run stamped: its files did not change just now."""
    until_s = time.monotonic() + 30
    while not source_state(only(folder)).is_settled:
        assert time.monotonic() < until_s
        time.sleep(0.1)
    assert KeptAnalyses(elsewhere).read(only(folder)) is not None


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
    settle(folder, elsewhere)
    (only(folder) / ANALYSIS / "diagnosis.json").unlink()
    (entry,) = RunStore(folder, analyses=KeptAnalyses(elsewhere)).entries(max_new=0)
    assert (entry.state, entry.layout) == ("ready", "TP1 PP2 DP2")
    assert entry.top_finding == str(run.diagnosis.findings[0].claim)
    assert entry.modified_ns == run.times.written_ns
    assert len(measured) == 1


def test_the_list_looks_at_a_run_once_for_each_state_of_it(folder, elsewhere, monkeypatch):
    """Fails when each look at the list reads again whatever no kept analysis is of."""
    opened(folder, elsewhere)
    settle(folder, elsewhere)
    looks = []
    monkeypatch.setattr(kept_analysis, "source_state", lambda path: looks.append(path) or STATE)
    store = RunStore(folder, patience=0, analyses=KeptAnalyses(elsewhere))
    for _ in range(3):
        (entry,) = store.entries(max_new=0)
        assert entry.state == "pending"
    assert len(looks) == 1
    touched = next(only(folder).rglob("*.parquet"))
    os.utime(touched)
    store.entries(max_new=0)
    assert len(looks) == 2


def test_a_copy_is_stamped_anew(folder, elsewhere, monkeypatch):
    """Fails when the contents of a copied run are read at each start, and its line waits for that."""
    opened(folder, elsewhere)
    settle(folder, elsewhere)
    hashed = []
    real = kept_analysis.source_hash
    monkeypatch.setattr(
        kept_analysis, "source_hash", lambda path: hashed.append(path) or real(path)
    )
    assert opened(folder, elsewhere).is_kept
    assert not hashed


def test_a_file_that_is_changed_back_in_time_is_seen(folder, elsewhere, measured):
    """Fails when other contents of the same size, with the time of before, pass for the same."""
    opened(folder, elsewhere)
    settle(folder, elsewhere)
    place = max(only(folder).rglob("*.parquet"), key=lambda one: one.stat().st_size)
    found, content = place.stat(), bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert KeptAnalyses(elsewhere).read(only(folder)) is None


def test_what_changes_while_it_is_hashed_is_not_kept(folder, elsewhere, monkeypatch):
    """Fails when the analysis of old contents is kept under the hash of new ones."""
    run = RunStore(folder).get(only(folder).name)
    state = source_state(only(folder))
    real = kept_analysis.source_hash

    def hashed(path):
        os.utime(next(path.rglob("*.parquet")))
        return real(path)

    monkeypatch.setattr(kept_analysis, "source_hash", hashed)
    kept = kept_analysis.Kept(run.diagnosis, "")
    assert not KeptAnalyses(elsewhere).keep(only(folder), kept, line_of(run), state)
    assert not (only(folder) / ANALYSIS).exists()


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


@pytest.mark.parametrize("place", ["file/analyses", "x" * 300])
def test_no_place_to_keep_it_is_no_error(tmp_path, measured, place, caplog):
    """Fails when a dashboard whose folder for caches cannot be read shows no runs, or says nothing."""
    write_job(tmp_path / "runs" / "job")
    age(tmp_path / "runs")
    (tmp_path / "file").write_text("no folder")
    opened(tmp_path / "runs", tmp_path / place)
    opened(tmp_path / "runs", tmp_path / place)
    assert len(measured) == 2
    assert "the analysis of job is not kept" in caplog.text


def test_a_run_that_others_can_write_is_kept_elsewhere(folder, elsewhere, measured):
    """Fails when others of a group could have the dashboard write where they want."""
    only(folder).chmod(0o770)
    opened(folder, elsewhere)
    assert not (only(folder) / ANALYSIS).exists()
    assert len(list(elsewhere.iterdir())) == 1
    assert opened(folder, elsewhere).is_kept
    assert len(measured) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a run to another user")
def test_a_run_of_another_user_is_kept_elsewhere(folder, elsewhere):
    """Fails when a dashboard that root runs writes into the folders of users."""
    os.chown(only(folder), 12345, -1)
    opened(folder, elsewhere)
    assert not (only(folder) / ANALYSIS).exists()
    assert len(list(elsewhere.iterdir())) == 1


def test_a_folder_of_caches_of_another_user_is_not_used(folder, tmp_path):
    """Fails when analyses go into a folder that somebody planted at the place of the user's own."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "caches").symlink_to(tmp_path / "theirs")
    only(folder).chmod(0o770)
    opened(folder, tmp_path / "caches")
    assert not list((tmp_path / "theirs").iterdir())


def test_two_servers_may_keep_the_same_run(folder, elsewhere, monkeypatch):
    """Fails when the slower of two servers fails, keeps a run twice, or leaves half of it."""
    run, path = RunStore(folder).get(only(folder).name), only(folder)
    kept, state = kept_analysis.Kept(run.diagnosis, ""), source_state(path)
    analyses, real = KeptAnalyses(elsewhere), shutil.rmtree

    def meanwhile(place, **given):
        real(place, **given)
        if place == path / ANALYSIS:
            monkeypatch.setattr(kept_analysis.shutil, "rmtree", real)
            assert KeptAnalyses(elsewhere).keep(path, kept, line_of(run), state)

    monkeypatch.setattr(kept_analysis.shutil, "rmtree", meanwhile)
    assert analyses.keep(path, kept, line_of(run), state)
    assert analyses.read(path) is not None
    assert not elsewhere.exists()
    assert not list(path.glob(".draft-*"))


def test_files_of_two_servers_do_not_mix(folder, elsewhere, tmp_path):
    """Fails when the findings of one analysis are shown for the run of another."""
    opened(folder, elsewhere)
    write_synthetic(tmp_path / "other", "slow_rank:rank=1,factor=2")
    age(tmp_path / "other")
    opened(tmp_path / "other", elsewhere)
    theirs = only(tmp_path / "other") / ANALYSIS / "diagnosis.json"
    shutil.copy(theirs, only(folder) / ANALYSIS / "diagnosis.json")
    assert KeptAnalyses(elsewhere).read(only(folder)) is None


def test_one_that_breaks_a_page_is_made_anew(folder, elsewhere, measured, caplog):
    """Fails when a kept analysis of the right types that no page can draw takes a run down for ever."""
    opened(folder, elsewhere)
    place = only(folder) / ANALYSIS
    value = json.loads((place / "diagnosis.json").read_text())
    pq.write_table(pa.table({"stage": [0]}), place / "few.parquet", compression="none")
    digest = hashlib.sha256((place / "few.parquet").read_bytes()).hexdigest()
    few = {"file": "few.parquet", "sha256": digest, "order": ["stage"], "rows": 1, "others": {}}
    value["memory"] = few
    text = json.dumps(value).encode()
    (place / "diagnosis.json").write_bytes(text)
    facts = json.loads((place / "analysis.json").read_text())
    digest = hashlib.sha256(text).hexdigest()
    (place / "analysis.json").write_text(json.dumps(facts | {"diagnosis": digest}))
    store = RunStore(folder, analyses=KeptAnalyses(elsewhere))
    name = only(folder).name
    page = str(page_of(store, f"/run/{name}/overview", ""))
    assert "Rank 3" in page
    assert len(measured) == 2
    assert "is made anew" in caplog.text
    assert not store.get(name).is_kept
    assert opened(folder, elsewhere).is_kept, "a good one is kept in its place"


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
    assert json.loads(place.read_text()) | {"stamp": None} == facts | {"stamp": None}, (
        "written anew"
    )


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
