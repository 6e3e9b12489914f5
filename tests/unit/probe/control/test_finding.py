"""Finding the sockets of a run, and saying where the others are."""

import os
import socket
import subprocess
import sys
import time

import pytest

from meshscope.probe.control import directory
from meshscope.probe.control.client import Endpoint
from meshscope.probe.control.directory import make_directory, run_name, socket_name
from meshscope.probe.control.finding import (
    owner_of_process,
    python_of_process,
    ranks_of_run,
    socket_of_process,
)
from meshscope.probe.schema.errors import ConfigError, RunDirectoryError
from meshscope.probe.schema.manifest import write_json
from meshscope.probe.schema.rundir import create_run

GONE = 2**22 + 1
"""No process has this id."""


@pytest.fixture
def run(tmp_path):
    """Return a new run of three ranks."""
    return create_run(tmp_path, "run-1", {"world_size": 3})


def touch_socket(run, variables, rank, pid):
    """Put a file where a rank's socket would be; return its path."""
    path = make_directory(run_name(run), variables) / socket_name(rank, pid)
    path.touch()
    return path


def note(run, rank, pid, socket, **facts):
    """Write the note of a rank, with some of its facts changed."""
    content = {
        "rank": rank,
        "pid": pid,
        "host": os.uname().nodename,
        "boot_id": directory.boot_id(),
        "socket": str(socket),
        **facts,
    }
    (run / directory.FOLDER).mkdir(exist_ok=True)
    write_json(run / directory.FOLDER / f"rank{rank:05d}.{pid}.json", content)


def test_sockets_are_found_by_directory_and_by_note(run, variables, short_dir):
    """Fails when a rank is missed whose variables differ from the user's."""
    by_name = touch_socket(run, variables, 0, 10)
    other = short_dir / "other"
    other.mkdir(mode=0o700)
    by_note = touch_socket(run, {"XDG_RUNTIME_DIR": str(other)}, 1, 11)
    note(run, 1, 11, by_note)
    note(run, 0, 10, by_name)
    found = ranks_of_run(run, variables)
    assert found.here == [Endpoint(0, 10, by_name), Endpoint(1, 11, by_note)]
    assert (found.unknown, found.elsewhere, found.refused) == ([2], {}, {})


def test_ranks_of_other_hosts_are_named_with_their_host(run, variables):
    """Fails when a rank that cannot be asked from here passes as missing."""
    note(run, 0, 10, "/run/user/0/x.sock", host="node-7", boot_id="another")
    note(run, 1, os.getpid(), "/of/another/container.sock", host="box")
    found = ranks_of_run(run, variables)
    assert found.elsewhere == {"node-7": [0], "box": [1]}
    assert (found.here, found.unknown) == ([], [2])


def test_notes_of_dead_processes_are_forgotten(run, variables):
    """Fails when a rank that was killed hides that it has no socket."""
    note(run, 0, GONE, "/run/user/0/x.sock")
    assert ranks_of_run(run, variables).unknown == [0, 1, 2]


def test_a_note_cannot_lead_to_an_open_directory(run, variables, short_dir):
    """Fails when a note makes the user talk to a socket that others could have put there."""
    path = short_dir / "open" / "rank0.10.sock"
    path.parent.mkdir()
    path.parent.chmod(0o755)
    path.touch()
    note(run, 0, 10, path)
    found = ranks_of_run(run, variables)
    assert found.here == []
    assert "has mode 755" in found.refused[0]


def test_two_runs_on_one_host_are_kept_apart(tmp_path, variables):
    """Fails when an order for one run reaches the ranks of another of the same name."""
    runs = [create_run(tmp_path / folder, "run-1", {"world_size": 1}) for folder in "ab"]
    sockets = [touch_socket(run, variables, 0, 10 + number) for number, run in enumerate(runs)]
    for run, path in zip(runs, sockets, strict=True):
        assert [endpoint.path for endpoint in ranks_of_run(run, variables).here] == [path]


def test_what_is_no_run_is_an_error(tmp_path, variables):
    """Fails when a typing error looks like a job without ranks."""
    with pytest.raises(ConfigError, match="is not a run directory, and no running rank"):
        ranks_of_run(tmp_path / "nothing", variables)


def test_a_torn_manifest_is_named_where_nothing_else_tells_of_the_job(run, variables):
    """Fails when a run whose manifest was cut looks like a typing error, or hides ranks that run."""
    (run / "manifest.json").write_text('{"world_size":', encoding="utf-8")
    with pytest.raises(RunDirectoryError, match="is not valid JSON"):
        ranks_of_run(run, variables)
    socket = touch_socket(run, variables, 0, 10)
    found = ranks_of_run(run, variables)
    assert [endpoint.path for endpoint in found.here] == [socket]
    assert found.unknown == []


def test_the_socket_of_a_process(run, variables):
    """Fails when a process is not found by its id, or another one is."""
    path = touch_socket(run, variables, 0, 77)
    assert socket_of_process(77, variables) == Endpoint(0, 77, path)
    assert socket_of_process(GONE, variables) is None


def test_the_kernel_tells_of_a_socket_elsewhere(run, variables, short_dir):
    """Fails when a process with another runtime directory has no socket for the user."""
    other = short_dir / "other"
    other.mkdir(mode=0o700)
    folder = make_directory(run_name(run), {"XDG_RUNTIME_DIR": str(other)})
    path = folder / socket_name(3, os.getpid())
    assert socket_of_process(os.getpid(), variables) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen()
        assert socket_of_process(os.getpid(), variables) == Endpoint(3, os.getpid(), path)
        folder.chmod(0o755)
        assert socket_of_process(os.getpid(), variables) is None


def test_what_a_process_is():
    """Fails when the user or the Python of a process is taken for another."""
    assert owner_of_process(os.getpid()) == os.geteuid()
    assert python_of_process(os.getpid()) == ".".join(map(str, sys.version_info[:2]))
    assert (owner_of_process(GONE), python_of_process(GONE)) == (None, "")


def test_sockets_of_killed_ranks_are_removed_by_who_looks_next(run, variables):
    """Fails when dead sockets stay for good, or that of a rank that listens is taken away."""
    directory = make_directory(run_name(run), variables)
    kinds = socket.AF_UNIX, socket.SOCK_SEQPACKET
    code = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        "s.bind(sys.argv[1]); s.listen(1); print('up', flush=True); time.sleep(60)"
    )
    killed_path = directory / socket_name(0, GONE)
    killed = subprocess.Popen(
        [sys.executable, "-c", code, str(killed_path)], stdout=subprocess.PIPE, text=True
    )
    with killed, socket.socket(*kinds) as elsewhere, socket.socket(*kinds) as starting:
        assert killed.stdout.readline() == "up\n"
        killed.kill()
        killed.wait()
        elsewhere.bind(str(directory / socket_name(1, GONE + 1)))
        elsewhere.listen(4)
        starting.bind(str(directory / socket_name(2, os.getpid())))
        time.sleep(1.1)
        found = {endpoint.rank for endpoint in ranks_of_run(run, variables).here}
    assert found == {1, 2}
    assert not killed_path.exists()
