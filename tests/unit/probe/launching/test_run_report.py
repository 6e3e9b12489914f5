"""What is said of the ranks of a launch, and not of those of other launches of the run."""

import os
import subprocess
import sys

import pytest

from meshscope.probe.launching.run_place import place_of
from meshscope.probe.launching.run_report import report
from meshscope.probe.recording.rank_manifest import boot_id
from meshscope.probe.schema.manifest import create_directory, rank_directory, write_json


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
