"""What killed ranks leave of their sockets goes with their job, and nothing else does."""

import os
import socket
import subprocess
import sys

import pytest

from meshscope.probe.control import directory
from meshscope.probe.control.directory import make_directory, run_name, socket_name
from meshscope.probe.control.left_behind import remove_of_killed_ranks
from meshscope.probe.schema.manifest import write_json
from meshscope.probe.schema.rundir import create_run


@pytest.fixture
def run(tmp_path):
    """Return a new run."""
    return create_run(tmp_path, "run-1", {"world_size": 2})


@pytest.fixture
def ended():
    """Return the number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def leave(run, variables, rank, pid, **facts):
    """Leave a socket and the note of it as a killed rank does; return both."""
    place = make_directory(run_name(run), variables) / socket_name(rank, pid)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as served:
        served.bind(str(place))
    here = {"host": os.uname().nodename, "boot_id": directory.boot_id()}
    note = run / directory.FOLDER / f"rank{rank:05d}.{pid}.json"
    note.parent.mkdir(exist_ok=True)
    write_json(note, {"rank": rank, "pid": pid, **here, "socket": str(place), **facts})
    return place, note


def test_nothing_is_left_of_killed_ranks(run, variables, ended):
    """Fails when sockets, folders and notes of killed ranks pile up for good."""
    place, note = leave(run, variables, 0, ended)
    remove_of_killed_ranks(run)
    assert not place.parent.exists()
    assert not note.parent.exists()


def test_what_is_of_others_stays(run, variables, ended):
    """Fails when the end of one launcher cuts off ranks that live, or those of another host."""
    alive = leave(run, variables, 0, os.getpid())
    elsewhere = leave(run, variables, 1, ended, host="another")
    remove_of_killed_ranks(run)
    assert all(path.exists() for path in (*alive, *elsewhere))


def test_a_note_cannot_have_another_file_removed(run, variables, ended, tmp_path):
    """Fails when a note that somebody planted in a shared folder removes a file of its reader."""
    tmp_path.chmod(0o700)
    theirs = tmp_path / "data.sock"
    theirs.touch()
    leave(run, variables, 0, ended, socket=str(theirs))
    named = tmp_path / f"rank0.{ended}.sock"
    named.touch()
    leave(run, variables, 1, ended, socket=str(named))
    remove_of_killed_ranks(run)
    assert theirs.exists()
    assert named.exists()


def test_a_run_without_notes_is_left_alone(run):
    """Fails when the end of a job without sockets ends in an error."""
    remove_of_killed_ranks(run)
    assert run.exists()
