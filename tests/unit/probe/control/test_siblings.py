"""A rank that is killed is noted by the ranks beside it, where no launcher of ours watches."""

import json
import os
import subprocess
import sys
from signal import SIGKILL
from time import sleep

import pytest

from meshscope.probe.clock import now_ns
from meshscope.probe.control import siblings
from meshscope.probe.control.directory import socket_name
from meshscope.probe.control.siblings import SiblingWatch
from meshscope.probe.recording.rank_manifest import RankManifest
from meshscope.probe.schema.manifest import ENDED_NAME, MANIFEST_NAME, create_directory

WAIT = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def run(tmp_path):
    """Return a run directory beside an empty directory of sockets."""
    (tmp_path / "sockets").mkdir()
    return tmp_path / "run"


@pytest.fixture
def other():
    """Yield a process that waits; its parent has not looked when it ends."""
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def rank_of(run, rank, pid, **changes):
    """Return the directory of a rank that has a socket and a manifest."""
    directory = run / f"rank{rank:05d}"
    create_directory(directory)
    RankManifest(directory, rank=rank, device_uuid=None)
    path = directory / MANIFEST_NAME
    changes = {"pid": pid, **changes}
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")
    (run.parent / "sockets" / socket_name(rank, pid)).touch()
    return directory


def watching(run, signs, deaths=None):
    """Return a watch of rank 0, begun, that has found its siblings."""
    socket = run.parent / "sockets" / socket_name(0, os.getpid())
    told = [] if deaths is None else deaths
    watch = SiblingWatch(run, socket, signs.append, lambda: told.append(now_ns()), 2)
    watch.start()
    while not watch._watched:
        sleep(0.01)
    return watch


def killed(process, note):
    """Kill a process and return what was noted of its end."""
    process.kill()
    while not note.exists():
        sleep(0.01)
    return json.loads(note.read_text("utf-8"))


def test_a_rank_that_is_killed_is_noted_and_outlived(run, other):
    """Without a launcher that watches no file told which of the ranks had died: none of ten was named."""
    part, signs = rank_of(run, 1, other.pid), []
    watch = watching(run, signs)
    before_ns = now_ns()
    noted = killed(other, part / ENDED_NAME)
    while not signs or signs[-1] - noted["ended_ns"] < 20_000_000:
        sleep(0.01)
    watch.stop()
    assert before_ns <= noted["ended_ns"] <= now_ns()
    assert noted["wait_status"] == SIGKILL


def test_a_death_is_told_and_an_end_in_order_is_not(run, other):
    """A rank would look at what it issued last after the launcher has killed it, or at the end of each job."""
    rank_of(run, 1, other.pid)
    deaths = []
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE) as in_order:
        part = rank_of(run, 2, in_order.pid)
        watch = watching(run, [], deaths)
        while len(watch._watched) < 2:
            watch._look()
        in_order.stdin.close()
        while not (part / ENDED_NAME).exists():
            sleep(0.01)
        sleep(0.1)
        assert deaths == []
    other.kill()
    while not deaths:
        sleep(0.01)
    watch.stop()


def test_what_the_launcher_has_noted_stays(run, other):
    """A rank that looks late would overwrite how the other one ended."""
    part, signs = rank_of(run, 1, other.pid), []
    watch = watching(run, signs)
    (part / ENDED_NAME).write_text('{"by": "the launcher"}')
    assert killed(other, part / ENDED_NAME) == {"by": "the launcher"}
    while not signs:
        sleep(0.01)
    watch.stop()
    assert json.loads((part / ENDED_NAME).read_text("utf-8")) == {"by": "the launcher"}


def test_a_process_of_another_container_with_that_id_tells_nothing(run, other):
    """The end of a stranger would be written down as the end of a rank."""
    part, signs = rank_of(run, 1, other.pid, host="another"), []
    watch = watching(run, signs)
    other.kill()
    while not signs:
        sleep(0.01)
    watch.stop()
    assert not (part / ENDED_NAME).exists()


def test_each_rank_watches_a_few_that_follow_it(run, other, monkeypatch):
    """What a death costs would grow with the square of the ranks of a host."""
    monkeypatch.setattr(siblings, "MOST_WATCHED", 2)
    opened = []
    monkeypatch.setattr(os, "pidfd_open", lambda pid: opened.append(pid) or os.dup(0))
    for rank, pid in ((1, 11), (2, 12), (3, 13)):
        rank_of(run, rank, pid)
    socket = run.parent / "sockets" / socket_name(2, 12)
    watch = SiblingWatch(run, socket, print, print)
    watch._look()
    assert opened == [13, 11]


def test_a_watch_ends_at_once(run, other):
    """300 cycles of attach and detach would leave as many threads."""
    rank_of(run, 1, other.pid)
    watch = watching(run, [])
    thread = watch._thread
    watch.stop()
    assert not thread.is_alive()
    assert not watch._wake.is_open


def test_a_watch_that_has_ended_by_itself_is_stopped_without_an_error(run, other):
    """Fails when the end of recording raises in the program because the thread was quicker."""
    rank_of(run, 1, other.pid)
    watch = watching(run, [])
    thread, wake = watch._thread, watch._wake
    watch._stopped = True
    os.eventfd_write(wake.number, 1)
    thread.join(10)
    watch.stop()
    assert not wake.is_open
