"""One thread, one request a connection, only for this user."""

import os
import signal
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from meshscope.probe.control import server as server_module
from meshscope.probe.control.client import ask
from meshscope.probe.control.messages import MOST_BYTES, Reply, decode_reply, encode_request
from meshscope.probe.control.server import RequestLog
from meshscope.probe.control.verbs import Refusal, Verb
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import message

TELL = Verb("status", "Tell.", lambda _: {"step": 3})


def fail(_):
    """Fail as a verb with a mistake would."""
    raise ZeroDivisionError("a mistake")


def refuse(_):
    """Refuse."""
    raise Refusal(message("reply.step_begun", step=7))


def send(path, packet):
    """Send bytes to a socket and return what comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.send(packet)
        return connection.recv(MOST_BYTES)


def test_requests_are_answered_and_logged(serve):
    """Fails when an answer is wrong, or a request is not found in the log."""
    server = serve(TELL, Verb("fail", "Fail.", fail), Verb("refuse", "Refuse.", refuse))
    assert ask(server.path, "status", {}).result == {"step": 3}
    assert ask(server.path, "refuse", {}).error == "step 7 has begun already"
    assert ask(server.path, "fail", {}).error == "the probe failed: ZeroDivisionError: a mistake"
    assert ask(server.path, "status", {}).ok, "an error ends the service"
    server.stop()
    logged = server.log.to_json()
    assert [entry["verb"] for entry in logged] == ["status", "refuse", "fail", "status"]
    assert {(entry["uid"], entry["pid"]) for entry in logged} == {(os.geteuid(), os.getpid())}
    assert (server.log.count, server.log.errors) == (4, 1)


def test_its_thread_takes_no_signal_of_the_program(serve):
    """Fails when a signal that the program blocks and waits for ends the process instead."""
    verb = Verb(
        "blocked", "Tell.", lambda _: {"is": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))}
    )
    blocked = ask(serve(verb).path, "blocked", {}).result["is"]
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1} <= set(blocked)


def test_the_socket_is_for_us_alone(serve):
    """Fails when the socket itself is open to others."""
    assert stat.S_IMODE(serve(TELL).path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "packet",
    [b"{}", b"\x80\x04\x95.", b"x" * (MOST_BYTES + 1), b"x" * 150_000, b"GET / HTTP/1.1\r\n\r\n"],
)
def test_what_is_no_request_is_refused(serve, packet):
    """Fails when an oversize or malformed packet is taken, or ends the service."""
    server = serve(TELL)
    assert not decode_reply(send(server.path, packet)).ok
    assert ask(server.path, "status", {}).ok
    assert server.log.to_json()[0]["verb"] == "?"


def test_a_client_that_says_nothing_delays_the_next_for_a_bounded_time(serve, monkeypatch):
    """Fails when one silent connection blocks the socket for good."""
    monkeypatch.setattr("meshscope.probe.control.server._PATIENCE_S", 0.05)
    server = serve(TELL)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(server.path))
        assert ask(server.path, "status", {}).ok


def test_stopping_leaves_nothing(serve):
    """Fails when the thread, the descriptor or the socket file outlives the server."""
    before = set(os.listdir("/proc/self/fd"))
    # A server that was stopped by a verb of its own may still be ending.
    others = set(threading.enumerate())
    server = serve(TELL)
    path = server.path
    (thread,) = (
        t for t in threading.enumerate() if t.name == "meshscope-control" and t not in others
    )
    ask(path, "status", {})
    server.stop()
    server.stop()
    assert not thread.is_alive()
    assert not path.exists()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_thread_that_sees_the_end_by_itself_is_waited_for_too(serve, monkeypatch):
    """Fails when a thread that has just closed its socket is left, as one whose socket the program closed."""
    answer, close = server_module.ControlServer._answer, server_module._close

    def slow_answer(self, connection):
        answer(self, connection)
        time.sleep(0.05)

    def slow_close(listening, own):
        close(listening, own)
        time.sleep(0.3)

    def slow_unlink(path, *, missing_ok):
        unlink(path, missing_ok=missing_ok)
        time.sleep(0.15)

    unlink = Path.unlink
    monkeypatch.setattr(server_module.ControlServer, "_answer", slow_answer)
    monkeypatch.setattr(server_module, "_close", slow_close)
    server = serve(TELL)
    thread = server._thread
    ask(server.path, "status", {})
    monkeypatch.setattr(Path, "unlink", slow_unlink)
    server.stop()
    assert not thread.is_alive()


def test_a_verb_may_stop_its_own_server(serve):
    """Fails when the request to close the socket hangs or gets no answer."""
    server = serve(Verb("remove", "Go.", lambda _: server.stop() or {"gone": True}))
    assert ask(server.path, "remove", {}).result == {"gone": True}
    deadline = time.monotonic() + 5
    while any(t.name == "meshscope-control" for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_idle_server_uses_no_processor(serve):
    """Fails when the waiting thread polls."""
    server = serve(TELL)
    thread = next(t for t in threading.enumerate() if t.name == "meshscope-control")
    stat_file = f"/proc/self/task/{thread.native_id}/status"

    def switches():
        with open(stat_file) as file:
            return [line for line in file if "ctxt_switches" in line]

    def is_idle():
        before = switches()
        time.sleep(0.3)
        return switches() == before

    # On a busy machine it may take a while until it waits at all.
    assert any(is_idle() for _ in range(20))
    server.stop()


def test_a_directory_that_was_opened_is_not_used(serve, variables):
    """Fails when a socket is made where others may connect."""
    server = serve(TELL)
    server.stop()
    server.path.parent.chmod(0o755)
    with pytest.raises(ConfigError, match="mode 755"):
        server.start()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_does_not_serve(serve):
    """Fails when a data loader worker answers for its rank, or takes its socket away."""
    before = _open_sockets()
    server = serve(TELL)
    (own,) = _open_sockets() - before
    child = os.fork()
    if child == 0:
        has_it = own in _open_sockets()
        server.stop()
        os._exit(has_it)
    _, status = os.waitpid(child, 0)
    assert ask(server.path, "status", {}).ok
    assert os.waitstatus_to_exitcode(status) == 0, "the child must have closed the socket"


def _open_sockets():
    """Return the sockets of this process by their number in the kernel."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {link for link in found if link.startswith("socket:")}


def ask_as_nobody(path):
    """Return what another user is told, asking from a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writing, send(path, encode_request("status", {})))
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as answer:
        return decode_reply(answer.read())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_is_refused(serve):
    """Fails when the peer's user is not checked, where the directory's mode does not help."""
    server = serve(TELL)
    opened = [server.path, *server.path.parents[:3]]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in opened}
    for path in opened:
        path.chmod(0o777)
    try:
        reply = ask_as_nobody(server.path)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert reply == Reply(ok=False, result={}, error="only this user and root may ask")
    assert server.log.to_json()[0]["outcome"] == "refused: another user"


def test_the_newest_requests_are_kept():
    """Fails when the log grows without bound, or forgets the newest."""
    log, reported = RequestLog(), []
    log.tell(lambda changed: reported.append(changed.count))
    for number in range(1000):
        log.add("status", 0, number, "x" * 1000)
    kept = log.to_json()
    assert (len(kept), kept[-1]["pid"], log.count, reported[-1]) == (256, 999, 1000, 1000)
    assert len(kept[0]["outcome"]) == 120
    log.tell(None)
    log.add("status", 0, 0, "done")
    assert reported[-1] == 1000
