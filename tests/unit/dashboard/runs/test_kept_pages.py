"""What pages say, kept beside the analysis of a run, and what is made before somebody asks."""

import errno
import json
import threading
import time

import pytest
from tests.unit.dashboard.conftest import write_synthetic
from tests.unit.dashboard.runs.test_kept_analysis import age, only, opened

from meshscope.dashboard import create_app
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.runs import loaded_run
from meshscope.dashboard.runs.background import Background
from meshscope.dashboard.runs.kept_analysis import KeptAnalyses
from meshscope.dashboard.runs.kept_pages import KeptPages
from meshscope.dashboard.runs.loaded_run import placement
from meshscope.dashboard.runs.page_maker import PageMaker, StillMeasuredError, making
from meshscope.dashboard.runs.run_files import ANALYSIS
from meshscope.dashboard.runs.store import RunStore

SLOW = "slow_rank:rank=3,factor=1.5"
NAME = "page-communication.json"


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one run that nobody writes any more."""
    write_synthetic(tmp_path / "runs", SLOW)
    age(tmp_path / "runs")
    return tmp_path / "runs"


def test_the_page_of_communication_is_kept(folder, tmp_path, monkeypatch):
    """Fails when each restart measures a run again for its communication, or says something else of it."""
    before = opened(folder, tmp_path / "cache").communication()
    assert (only(folder) / ANALYSIS / NAME).stat().st_mode & 0o077 == 0
    monkeypatch.setattr(loaded_run, "communication_to_json", None)
    monkeypatch.setattr("meshscope.dashboard.timeline.paths.measure", None)
    after = opened(folder, tmp_path / "cache")
    assert after.is_kept
    assert after.communication() == before
    assert before["collective_count"] > 0
    assert before["expected"]["rows"] or before["expected"]["unknown"]


def test_the_mesh_on_the_hosts_is_kept(folder, tmp_path, monkeypatch):
    """Fails when each restart measures a run again for the price of its placement, or says something else of it."""
    before = placement(opened(folder, tmp_path / "cache"))
    monkeypatch.setattr(loaded_run, "placement_to_json", None)
    assert placement(opened(folder, tmp_path / "cache")) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(json.loads(text)["analysis"], "of another run"),
        lambda _: "[]",
        lambda text: json.dumps(json.loads(text) | {"value": 5}),
    ],
)
def test_what_is_damaged_or_of_another_analysis_is_made_anew(folder, tmp_path, damage):
    """Fails when half a file, or one of another analysis, takes a page down or is shown on it."""
    before = opened(folder, tmp_path / "cache").communication()
    place = only(folder) / ANALYSIS / NAME
    place.write_text(damage(place.read_text()))
    assert opened(folder, tmp_path / "cache").communication() == before
    assert json.loads(place.read_text())["value"] == before


def test_nothing_is_kept_where_others_may_write(tmp_path):
    """Fails when another user could have the dashboard write into a folder of theirs."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    KeptPages(theirs, "a").keep("communication", {"one": 1})
    KeptPages(tmp_path / "gone", "a").keep("communication", {"one": 1})
    (tmp_path / "link").symlink_to(theirs)
    KeptPages(tmp_path / "link", "a").keep("communication", {"one": 1})
    assert not list(theirs.iterdir())


def test_communication_is_made_before_somebody_asks(folder, tmp_path):
    """Fails when the first click on the page of communication waits, though its account was at hand before."""
    background = Background()
    analyses = KeptAnalyses(tmp_path / "cache")
    store = RunStore(folder, analyses=analyses, background=background)
    store.get(only(folder).name)
    ended = threading.Event()
    background.later("end", ended.set)
    assert ended.wait(60)
    assert (only(folder) / ANALYSIS / NAME).is_file()


def test_work_is_done_once_and_a_failure_ends_nothing():
    """Fails when what waits already is done again, or one failure leaves the rest undone for ever."""
    background, done, go = Background(), [], threading.Event()
    background.later("first", go.wait)
    background.later("bad", lambda: 1 / 0)
    for _ in range(3):
        background.later("same", lambda: done.append(1))
    ended = threading.Event()
    background.later("end", ended.set)
    go.set()
    assert ended.wait(30)
    assert done == [1]


@pytest.fixture
def apart(monkeypatch):
    """Have every run analysed in a process of its own."""
    monkeypatch.setattr("meshscope.dashboard.runs.kept_run.LEAST_BYTES", 0)


def made(run, pages=("communication", "memory", "kernels")):
    """Wait until a process has made the pages of a run."""
    while run.pages.maker.is_making():
        time.sleep(0.1)
    assert all(run.pages.read(name) for name in pages)


def test_a_large_run_is_analysed_in_a_process_of_its_own(folder, tmp_path, apart, monkeypatch):
    """Fails when the memory of an analysis stays with the server, or its pages have to measure the run again."""
    for name in ("account_or_end", "communication_to_json"):
        monkeypatch.setattr(loaded_run, name, None)
    monkeypatch.setattr("meshscope.dashboard.timeline.paths.measure", None)
    run = opened(folder, tmp_path / "cache")
    assert run.is_kept
    assert str(run.diagnosis.findings[0].claim).startswith("Rank 3")
    made(run)
    assert run.communication()["collective_count"] > 0
    step = run.diagnosis.ledger["step"].iloc[0]
    assert any(place.name.startswith("page-path-") for place in run.pages.folder.iterdir())
    assert run.path_unknown_because(step) == ""


def test_after_a_restart_a_process_makes_the_missing_pages(folder, tmp_path, apart, monkeypatch):
    """Fails when a server that is started again soon measures a large run itself, for a page that holds up others."""
    made(opened(folder, tmp_path / "cache"))
    for place in (only(folder) / ANALYSIS).glob("page-*"):
        place.unlink()
    monkeypatch.setattr(loaded_run, "communication_to_json", None)
    run = opened(folder, tmp_path / "cache")
    with pytest.raises(StillMeasuredError):
        run.communication()
    made(run)
    assert run.communication()["collective_count"] > 0


def test_pages_that_another_server_makes_are_not_made_again(folder, tmp_path, apart):
    """Fails when two servers, or one before and after a restart, measure the same large run."""
    made(opened(folder, tmp_path / "cache"))
    for place in (only(folder) / ANALYSIS).glob("page-*"):
        place.unlink()
    with making(only(folder) / ANALYSIS):
        run = opened(folder, tmp_path / "cache")
        with pytest.raises(StillMeasuredError):
            run.communication()
        assert run.pages.maker.process is None


def test_a_folder_without_locks_is_not_always_busy(tmp_path, monkeypatch):
    """Fails when pages say for ever that they are still measured, on a file system that has no locks."""
    maker = PageMaker(tmp_path, lambda: None)
    with making(tmp_path):
        assert maker.is_making()
    assert not maker.is_making()

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("meshscope.dashboard.runs.page_maker.fcntl.flock", no_locks)
    with making(tmp_path):
        assert not maker.is_making()


def test_who_makes_pages_waits_for_those_who_only_look(tmp_path):
    """Fails when a look for the lock, at the wrong instant, ends the process that is to make the pages."""
    looked = threading.Event()

    def look():
        with making(tmp_path):
            looked.set()
            time.sleep(0.2)

    thread = threading.Thread(target=look)
    thread.start()
    assert looked.wait(10)
    with making(tmp_path):
        thread.join()
    with making(tmp_path), pytest.raises(BlockingIOError), making(tmp_path):
        pass


def test_a_process_that_fails_leaves_pages_to_the_server(folder, tmp_path, apart, monkeypatch):
    """Fails when a page of a run says for ever that it is still measured."""
    made(opened(folder, tmp_path / "cache"))
    (only(folder) / ANALYSIS / NAME).unlink()
    monkeypatch.setattr("meshscope.dashboard.runs.apart.sys.executable", "/bin/false")
    run = opened(folder, tmp_path / "cache")
    with pytest.raises(StillMeasuredError):
        run.communication()
    while run.pages.maker.is_making():
        time.sleep(0.01)
    assert run.communication()["collective_count"] > 0


def test_pages_and_their_twins_say_that_they_are_still_measured(folder, tmp_path, apart):
    """Fails when a page waits for a minute, or ends in an error, while a process measures its run."""
    made(opened(folder, tmp_path / "cache"))
    for place in (only(folder) / ANALYSIS).glob("page-*"):
        place.unlink()
    name = only(folder).name
    analyses = KeptAnalyses(tmp_path / "cache")
    app = create_app(folder, analyses=analyses)
    store = RunStore(folder, analyses=analyses)
    with making(only(folder) / ANALYSIS):
        for page in ("communication", "links", "memory", "kernels"):
            answer = app.server.test_client().get(f"/api/v1/runs/{name}/{page}.json")
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) > 0
            assert "still being measured" in answer.json["error"]
            assert "Still being measured" in str(page_of(store, f"/run/{name}/{page}", ""))
        mesh = str(page_of(store, f"/run/{name}/mesh", ""))
        assert "Still being measured" in mesh
        assert "Every rank in every step" in mesh
        line = str(page_of(store, f"/run/{name}/timeline", "?path=1"))
        assert "No critical path is drawn" in line


def test_where_no_process_can_be_had_the_server_analyses(folder, tmp_path, apart, monkeypatch):
    """Fails when a machine on which no process can be started shows no runs."""
    monkeypatch.setattr("meshscope.dashboard.runs.apart.sys.executable", str(tmp_path / "none"))
    run = opened(folder, tmp_path / "cache")
    assert not run.is_kept
    assert run.diagnosis.findings
    monkeypatch.setattr("meshscope.dashboard.runs.apart.sys.executable", "/bin/false")
    for place in (only(folder) / ANALYSIS).iterdir():
        place.unlink()
    assert not opened(folder, tmp_path / "cache").is_kept


def test_a_path_is_kept_to_the_last_digit(folder, tmp_path, monkeypatch):
    """Fails when the path that a finding leads to is measured again after each restart, or is another one."""
    before = opened(folder, tmp_path / "cache").path(1)
    monkeypatch.setattr("meshscope.dashboard.timeline.paths.measure", None)
    after = opened(folder, tmp_path / "cache")
    assert after.path(1).path.pieces.equals(before.path.pieces)
    assert after.path(1).path.end_ns == before.path.end_ns
    place = only(folder) / ANALYSIS / "page-path-1.json"
    for damaged in ({"step": 1}, {"step": 1, "pieces": {"rank": [[1]]}}):
        value = json.loads(place.read_text()) | {"value": damaged}
        place.write_text(json.dumps(value))
        monkeypatch.undo()
        assert opened(folder, tmp_path / "cache").path(1).path.pieces.equals(before.path.pieces)
