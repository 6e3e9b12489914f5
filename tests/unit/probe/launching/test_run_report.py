"""What is said of the ranks of a launch, and not of those of other launches of the run."""

import os
import subprocess
import sys

import pytest

from meshscope.probe.launching.run_place import place_of
from meshscope.probe.launching.run_report import report
from meshscope.probe.recording.rank_manifest import boot_id
from meshscope.probe.schema.manifest import (
    ENDED_NAME,
    create_directory,
    rank_directory,
    write_json,
)


@pytest.fixture
def dead_pid():
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def record(path, rank, part=1, **facts):
    """Make a part of a rank whose manifest states facts."""
    directory = rank_directory(path, rank, part)
    create_directory(directory)
    here = {"host": os.uname().nodename, "boot_id": boot_id(), "closed_unix_ns": None}
    write_json(directory / "manifest.json", here | facts)


def test_ranks_of_earlier_launches_are_not_counted(tmp_path, dead_pid):
    """Fails when a job that is started again and records nothing boasts of the time before."""
    record(place_of(tmp_path, "job", []).path, 0, pid=dead_pid)
    again = place_of(tmp_path, "job", [])
    assert report(again, is_dormant=True) == [f"0 ranks recorded in {again.path}"]
    record(again.path, 0, 2, pid=dead_pid, closed_unix_ns=1)
    assert report(again, is_dormant=False) == [f"1 rank recorded in {again.path}"]


def test_ranks_of_other_hosts_are_theirs_to_tell(tmp_path, dead_pid):
    """Fails when ranks that go on on another host are called killed."""
    place = place_of(tmp_path, "job", [])
    record(place.path, 0, pid=dead_pid)
    record(place.path, 1, pid=dead_pid, host="elsewhere", boot_id="another")
    first, second = report(place, is_dormant=False)
    assert first.startswith("1 rank of this host recorded in")
    assert "ranks 0;" in second


def test_a_rank_of_another_launcher_that_still_runs_was_not_killed(tmp_path):
    """Fails when the first of several launchers of a host to end calls the others' ranks killed."""
    place = place_of(tmp_path, "job", [])
    record(place.path, 0, pid=os.getpid())
    assert len(report(place, is_dormant=False)) == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "ended in order, with exit code 0, but before they closed"),
        (3 << 8, "ended with exit code 3 before"),
        (9, "killed by SIGKILL before"),
        (64 | 0x80, "killed by SIGRTMAX before"),
        (50, "killed by signal 50 before"),
        (0x137F, "killed, or ended by os._exit, before"),
        (None, "killed, or ended by os._exit, before"),
        (True, "killed, or ended by os._exit, before"),
        (1 << 70, "killed, or ended by os._exit, before"),
    ],
)
def test_how_a_rank_ended_is_said_as_the_system_reported_it(tmp_path, dead_pid, status, said):
    """A job that ended in order would be called killed."""
    place = place_of(tmp_path, "job", [])
    record(place.path, 0, pid=dead_pid)
    write_json(
        rank_directory(place.path, 0, 1) / ENDED_NAME, {"ended_ns": 1, "wait_status": status}
    )
    _, second = report(place, is_dormant=False)
    assert second.startswith(said)
    assert "ranks 0; what they recorded is kept" in second


def test_ranks_that_ended_unlike_each_other_are_separated(tmp_path, dead_pid):
    """The one that was killed would hide among those that its end took along."""
    place = place_of(tmp_path, "job", [])
    for rank, status in enumerate((9, 1 << 8, 1 << 8)):
        record(place.path, rank, pid=dead_pid)
        note = {"ended_ns": 1, "wait_status": status}
        write_json(rank_directory(place.path, rank, 1) / ENDED_NAME, note)
    _, *said = report(place, is_dormant=False)
    assert [line.partition(" before")[0] for line in said] == [
        "ended with exit code 1",
        "killed by SIGKILL",
    ]
    assert "ranks 1, 2;" in said[0]
