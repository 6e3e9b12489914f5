"""The store: what is listed, what is read, what is kept."""

import os
import shutil
import threading
import time

import pytest
from tests.unit.dashboard.conftest import write_job

from meshscope.dashboard.runs.store import RunStore
from meshscope.probe.schema.errors import ConfigError, MeshscopeError, RunDirectoryError

HOSTILE = [
    "..",
    ".",
    "",
    "/etc",
    "../secret",
    "job/..",
    "a\0b",
    "-rf",
    ".hidden",
    "x" * 200,
    "nope",
]


@pytest.mark.parametrize("run_id", HOSTILE)
def test_a_run_id_cannot_leave_the_folder(runs_dir, run_id):
    """Fails when an address can name a path outside the folder of runs."""
    store = RunStore(runs_dir)
    assert store.path_of(run_id) is None
    with pytest.raises(RunDirectoryError, match="no such run"):
        store.get(run_id)


def test_a_link_out_of_the_folder_is_not_followed(runs_dir, tmp_path):
    """Fails when a symbolic link makes a foreign folder readable."""
    outside = write_job(tmp_path / "outside")
    (runs_dir / "link").symlink_to(outside)
    store = RunStore(runs_dir)
    assert store.path_of("link") is None
    entry = next(entry for entry in store.entries(max_new=9) if entry.run_id == "link")
    assert (entry.state, entry.error) == ("unreadable", "is a link to outside the folder")


def test_everything_in_the_folder_is_listed(runs_dir):
    """Fails when an unreadable entry is hidden, or takes the readable ones down."""
    (runs_dir / "bad name").mkdir()
    entries = {entry.run_id: entry for entry in RunStore(runs_dir).entries(max_new=9)}
    assert set(entries) == {"job", "notes.txt", "bad name"}
    assert entries["job"].state == "ready"
    assert entries["job"].layout == "TP1 PP1 DP4"
    assert entries["job"].step_time_ns == pytest.approx(66_000_000)
    assert entries["job"].top_finding
    assert entries["notes.txt"].state == "unreadable"
    assert "notes.txt" in entries["notes.txt"].error
    assert "Rename it" in entries["bad name"].error


@pytest.mark.parametrize("name", ["x" * 129, "two words", "-x"])
def test_a_name_that_cannot_be_an_address_says_what_to_do(runs_dir, name):
    """Fails when a run is refused for its name without the rule, its length included."""
    (runs_dir / name).write_text("x")
    error = {entry.run_id: entry.error for entry in RunStore(runs_dir).entries(max_new=0)}[name]
    assert "Rename it: up to 128 letters" in error


def test_the_list_opens_before_everything_is_analysed(runs_dir):
    """Fails when a folder of many runs is analysed within one request."""
    write_job(runs_dir / "second")
    store = RunStore(runs_dir)
    states = [sorted(e.state for e in store.entries(max_new=1)) for _ in range(3)]
    assert [state.count("pending") for state in states] == [2, 1, 0]


def test_a_run_is_analysed_once_until_it_changes(runs_dir):
    """Fails when a page view repeats the analysis, or shows an old one of a changed run."""
    store = RunStore(runs_dir, patience=0)
    first = store.get("job")
    assert store.get("job") is first
    shutil.rmtree(runs_dir / "job")
    write_job(runs_dir / "job", steps=5)
    (changed,) = [entry for entry in store.entries(max_new=0) if entry.run_id == "job"]
    assert (changed.state, bool(changed.top_finding)) == ("pending", True)
    assert len(store.get("job").diagnosis.ledger["step"].unique()) == 5


def test_a_run_that_is_being_recorded_is_not_analysed_for_every_view(runs_dir):
    """Fails when the pages of a running job analyse all of it again for each click."""
    store = RunStore(runs_dir, patience=1e6)
    first = store.get("job")
    (runs_dir / "job" / "more.txt").write_text("x")
    assert store.get("job") is first
    assert first.times.as_of_ns is not None
    shutil.rmtree(runs_dir / "job")
    with pytest.raises(RunDirectoryError, match="no such run"):
        store.get("job")


def test_who_asks_for_the_list_does_not_wait_for_another_one(runs_dir):
    """Fails when requests for the list pile up behind the analysis of a large run."""
    store = RunStore(runs_dir)
    with store._listing:
        assert {entry.state for entry in store.entries(max_new=9)} == {"pending"}
    assert "pending" not in {entry.state for entry in store.entries(max_new=9)}


def test_an_error_is_remembered_until_the_file_changes(runs_dir):
    """Fails when a bad file is read again for every request, or stays bad after its repair."""
    store = RunStore(runs_dir, patience=0)
    with pytest.raises(MeshscopeError) as first:
        store.get("notes.txt")
    with pytest.raises(MeshscopeError) as second:
        store.get("notes.txt")
    assert str(second.value) == str(first.value)
    (runs_dir / "notes.txt").unlink()
    write_job(runs_dir / "notes.txt")
    assert store.get("notes.txt").diagnosis.findings


def test_the_least_recently_used_run_is_dropped(runs_dir):
    """Fails when the memory of a long-lived dashboard grows with every run looked at."""
    write_job(runs_dir / "second")
    store = RunStore(runs_dir, budget_bytes=1)
    first = store.get("job")
    store.get("second")
    assert store.get("second") is store.get("second")
    assert store.get("job") is not first
    assert [entry.state for entry in store.entries(max_new=0)].count("ready") == 2


def test_two_requests_share_one_analysis(runs_dir):
    """Fails when two tabs that open a run at once analyse it twice."""
    store, found = RunStore(runs_dir), []
    threads = [threading.Thread(target=lambda: found.append(store.get("job"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(run) for run in found}) == 1


def test_the_folder_must_exist(runs_dir):
    """Fails when a wrong path gives an empty dashboard in place of an error."""
    with pytest.raises(ConfigError, match="is not a folder of runs"):
        RunStore(runs_dir / "notes.txt")


def test_newest_first(runs_dir):
    """Fails when the run that was just recorded is not on top."""
    write_job(runs_dir / "old")
    for path in [runs_dir / "old", *(runs_dir / "old").iterdir()]:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert RunStore(runs_dir).entries(max_new=0)[-1].run_id == "old"


def test_an_analysis_is_no_news(runs_dir):
    """Fails when tables that a command keeps beside a run move it up in the list."""
    run = runs_dir / "job"
    before = RunStore(runs_dir).entries(max_new=0)
    (run / "tables").mkdir()
    (run / "tables" / "kept.parquet").write_bytes(b"x")
    later = time.time_ns() + 10**12
    for path in (run / "tables" / "kept.parquet", run / "tables", run):
        os.utime(path, ns=(later, later))
    assert RunStore(runs_dir).entries(max_new=0) == before
    os.utime(next(run.glob("*.yaml")), ns=(later, later))
    assert RunStore(runs_dir).entries(max_new=0) != before


def test_a_path_is_found_once(runs_dir):
    """Fails when every zoom looks for the path again, or the paths of all steps are kept."""
    write_job(runs_dir / "long", steps=9)
    run = RunStore(runs_dir).get("long")
    first = run.path(0)
    assert run.path(0) is first
    for step in range(1, 9):
        run.path(step)
    assert run.path(0) is not first


def test_what_was_analysed_is_not_measured_again(runs_dir, monkeypatch):
    """Fails when the first path, or the communication page, waits for a second measurement."""
    write_job(runs_dir / "long", steps=9)
    run = RunStore(runs_dir).get("long")
    monkeypatch.setattr("meshscope.dashboard.timeline.paths.measure", None)
    monkeypatch.setattr("meshscope.analyze.findings.diagnosis.measure", None)
    assert run.path(0).path.pieces["dur_ns"].sum() > 0
    assert run.communication()["collective_count"]


def test_zooming_does_not_rebuild_the_step(runs_dir):
    """Fails when every zoom sweeps the whole step again, or all steps are kept for ever."""
    write_job(runs_dir / "long", steps=9)
    run = RunStore(runs_dir).get("long")
    first = run.step(0)
    assert run.step(0) is first
    for step in range(1, 9):
        run.step(step)
    assert run.step(8) is run.step(8)
    assert run.step(0) is not first


@pytest.mark.parametrize("name", ["manifest.json", "rank00000"])
def test_a_run_with_a_link_to_outside_of_it_is_refused(runs_dir, tmp_path, name):
    """Fails when who may write a run can have the dashboard show what only its user may read."""
    run = write_job(runs_dir / "linked")
    place = run / name
    if not place.exists():
        place.mkdir()
    shutil.move(place, tmp_path / name)
    place.symlink_to(tmp_path / name)
    store = RunStore(runs_dir)
    with pytest.raises(MeshscopeError, match="link to outside"):
        store.get("linked")
    entry = next(entry for entry in store.entries(max_new=9) if entry.run_id == "linked")
    assert entry.state == "unreadable"
