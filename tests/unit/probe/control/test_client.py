"""Asking all ranks at once, whatever some of them do."""

import os
import socket
import time

import pytest

from meshscope.probe.control.client import Endpoint, ask, ask_all, endpoints_in, remove_dead
from meshscope.probe.control.directory import make_directory, socket_name
from meshscope.probe.control.messages import MessageError, Reply
from meshscope.probe.control.verbs import Verb


def test_every_rank_gets_an_answer_of_its_own(serve, variables):
    """Fails when a rank that is silent or gone delays the others or is not separated."""
    server = serve(Verb("status", "Tell.", lambda _: {"rank": 0}))
    directory = make_directory("run-1", variables)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(directory / socket_name(1, 11)))
        silent.listen(1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
            gone.bind(str(directory / socket_name(2, 12)))
        endpoints = [*endpoints_in(directory), Endpoint(3, 13, directory / "none.sock")]
        start = time.monotonic()
        answers = ask_all(endpoints, "status", {}, timeout_s=0.3)
    assert time.monotonic() - start < 5
    assert [answer.endpoint.rank for answer in answers] == [0, 1, 2, 3]
    assert answers[0].reply == Reply(ok=True, result={"rank": 0}, error="")
    assert [answer.silence for answer in answers[1:]] == [
        "no answer within 0.3 s",
        "process 12 no longer listens",
        "process 13 has closed its socket",
    ]
    assert server.log.count == 1


def test_only_sockets_of_ranks_are_taken(variables):
    """Fails when another file of the directory is asked."""
    directory = make_directory("run-1", variables)
    for name in ("rank0.12.sock", "agent.3.sock", "rank1.sock", "rank-1.2.sock", "notes"):
        (directory / name).touch()
    assert endpoints_in(directory) == [Endpoint(0, 12, directory / "rank0.12.sock")]


def test_sockets_of_killed_processes_are_removed(serve, variables):
    """Fails when dead sockets gather, or a living one is taken away."""
    server = serve(Verb("status", "Tell.", lambda _: {}))
    directory = make_directory("run-1", variables)
    for rank, pid in ((0, 11), (1, 12)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
            gone.bind(str(directory / socket_name(rank, pid)))
    remove_dead(directory, 0)
    assert [endpoint.pid for endpoint in endpoints_in(directory)] == [os.getpid(), 12]
    assert ask(server.path, "status", {}).ok


def test_nobody_to_ask():
    """Fails when an empty list is an error."""
    assert ask_all([], "status", {}) == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_server_that_talks_nonsense_is_no_answer(short_dir):
    """Fails when what a socket says is believed without being understood."""
    path = short_dir / "rank0.1.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen(1)
        child = os.fork()
        if child == 0:
            connection, _ = listening.accept()
            connection.recv(65536)
            connection.send(b"welcome")
            os._exit(0)
        with pytest.raises(MessageError, match="not valid JSON"):
            ask(path, "status", {})
        os.waitpid(child, 0)
