"""The ends of processes are noted when they happen, by somebody who is not their parent."""

import json
import subprocess
import sys
from signal import SIGKILL
from threading import Event
from time import sleep

from meshscope.probe.clock import now_ns
from meshscope.probe.launching import rank_watch
from meshscope.probe.launching.rank_watch import RankWatch
from meshscope.probe.recording.rank_manifest import RankManifest
from meshscope.probe.schema.manifest import ENDED_NAME, MANIFEST_NAME, create_directory

WAIT = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def rank_of(run, rank, **changes):
    """Return the directory of a rank whose manifest says what is wanted."""
    directory = run / f"rank{rank:05d}"
    create_directory(directory)
    RankManifest(directory, rank=rank, device_uuid=None)
    path = directory / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")
    return directory


def test_the_end_of_a_rank_is_noted_when_it_ends(tmp_path):
    """Fails if the rank that died first cannot be distinguished from those that were ended for it."""
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE) as process:
        ended = rank_of(tmp_path, 0, pid=process.pid)
        running = rank_of(tmp_path, 1)
        elsewhere = rank_of(tmp_path, 2, host="another", pid=process.pid)
        watch = RankWatch(tmp_path)
        watch.start()
        while watch.watched < 2:
            sleep(0.01)
        before_ns = now_ns()
        process.kill()
        while not (ended / ENDED_NAME).exists():
            sleep(0.01)
        process.wait()
        watch.stop()
    noted = json.loads((ended / ENDED_NAME).read_text("utf-8"))
    assert before_ns <= noted["ended_ns"] <= now_ns()
    assert noted["wait_status"] == SIGKILL
    assert not (running / ENDED_NAME).exists()
    assert not (elsewhere / ENDED_NAME).exists()


def test_a_rank_without_a_sound_manifest_is_no_reason_to_stop(tmp_path):
    """Fails if a damaged file, or a process that is gone, ends the watch or the command."""
    (rank_of(tmp_path, 0) / MANIFEST_NAME).write_text("{", "utf-8")
    rank_of(tmp_path, 1, pid="none")
    rank_of(tmp_path, 2, pid=2**22 + 1)
    watch = RankWatch(tmp_path)
    watch.start()
    watch.stop()
    assert not list(tmp_path.glob(f"*/{ENDED_NAME}"))


def test_parts_of_earlier_launches_are_left_alone(tmp_path):
    """Fails if the end of a stranger that has got the id of an old rank is noted as that rank's."""
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE) as stranger:
        old = rank_of(tmp_path, 0, pid=stranger.pid)
        watch = RankWatch(tmp_path, [old])
        watch.start()
        rank_of(tmp_path, 1)
        while watch.watched < 1:
            sleep(0.01)
        stranger.kill()
        stranger.wait()
        watch.stop()
    assert not (old / ENDED_NAME).exists()


def test_a_disk_that_hangs_does_not_keep_the_command_from_ending(tmp_path, monkeypatch):
    """Fails if ``meshscope run`` waits for ever for a look at its run directory."""
    hangs, goes_on = Event(), Event()

    def hanging(_path):
        hangs.set()
        goes_on.wait(60)
        return {}

    monkeypatch.setattr(rank_watch, "read_json", hanging)
    monkeypatch.setattr(rank_watch, "_STOP_S", 0.1)
    rank_of(tmp_path, 0)
    watch = RankWatch(tmp_path)
    watch.start()
    assert hangs.wait(60)
    began_ns = now_ns()
    watch.stop()
    assert now_ns() - began_ns < 10e9
    goes_on.set()


def test_looks_that_take_long_are_rare(tmp_path, monkeypatch):
    """Fails if a slow file system is asked again as soon as it has answered."""
    looks = []

    def slow(_watch):
        looks.append(now_ns())
        sleep(0.05)

    monkeypatch.setattr(RankWatch, "_add_new", slow)
    monkeypatch.setattr(rank_watch, "_LOOK_S", 0.01)
    with RankWatch(tmp_path):
        sleep(1.0)
    assert len(looks) == 1
