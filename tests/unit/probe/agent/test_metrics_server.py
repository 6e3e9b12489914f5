"""The HTTP server of the metrics, on a socket and on loopback."""

import contextlib
import socket
import threading
import time

import pytest

from meshscope.probe.agent import metrics_server
from meshscope.probe.agent.metrics_server import (
    LOOPBACK,
    MetricsServer,
    loopback_listener,
    unix_listener,
)
from meshscope.probe.control.server import Peer
from meshscope.probe.schema.errors import ConfigError


@pytest.fixture
def server(tmp_path):
    """Return a server on a Unix socket and its path."""
    path = tmp_path / "m.sock"
    found = MetricsServer(unix_listener(path), lambda: "metric 1\n")
    yield path
    found.stop()


def ask(path, request):
    """Return the answer to a raw request."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(4096):
            answer += part
    return answer


def test_metrics_are_served(server):
    """Fails when Prometheus cannot scrape an agent."""
    head, _, body = ask(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"Content-Length: 9" in head
    assert body == b"metric 1\n"
    assert server.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"", b"400"),
        (b"\x00\xff" * 8000, b"400"),
    ],
)
def test_anything_else_is_refused(server, request_bytes, status):
    """Fails when an odd request ends the server or gets more than the metrics."""
    try:
        answer = ask(server, request_bytes)
    except ConnectionResetError:
        answer = b"HTTP/1.1 400"  # The rest of a long request was not read.
    assert answer.split(b" ")[1] == status
    assert b"200 OK" in ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")


def test_a_port_is_on_loopback_only():
    """Fails when another machine could read the metrics."""
    listening = loopback_listener(0)
    server = MetricsServer(listening, lambda: "metric 1\n")
    host, port = listening.getsockname()
    assert host == LOOPBACK
    with pytest.raises(ConfigError, match=f"port {port}: cannot be served"):
        loopback_listener(port)
    server.stop()


@pytest.mark.parametrize("port", [-1, 1 << 20])
def test_a_port_that_there_is_not(port):
    """Fails when a typing error shows as a traceback."""
    with pytest.raises(ConfigError, match="there is no such port"):
        loopback_listener(port)


def test_a_stopped_server_leaves_nothing(tmp_path):
    """Fails when sockets of ended agents pile up."""
    path = tmp_path / "m.sock"
    MetricsServer(unix_listener(path), lambda: "").stop()
    assert not path.exists()


def test_a_server_may_end_while_it_answers(tmp_path):
    """Fails when an agent that ends at the moment of a scrape leaves its socket, or raises."""
    path = tmp_path / "m.sock"

    def end_and_answer():
        server._listening = None  # as the first line of ``stop`` on another thread
        return "metric 1\n"

    server = MetricsServer(unix_listener(path), end_and_answer)
    listening = server._listening
    ask(path, b"GET /metrics HTTP/1.1\r\n\r\n")
    server._thread.join(10)
    assert listening.fileno() == -1
    server._listening = listening
    server.stop()
    assert not path.exists()


def test_a_text_that_fails_is_an_answer(tmp_path):
    """Fails when one failed scrape ends the server for good."""
    path = tmp_path / "m.sock"
    server = MetricsServer(unix_listener(path), lambda: str(1 // 0))
    for _ in range(2):
        assert b"500" in ask(path, b"GET /metrics HTTP/1.1\r\n\r\n")
    server.stop()


def test_another_user_gets_nothing(server, monkeypatch):
    """Fails when a socket that leaked out of its directory tells a stranger of the run."""
    monkeypatch.setattr(metrics_server, "peer_of", lambda _: Peer(1, 4_000_000))
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        assert ask(server, b"GET /metrics HTTP/1.1\r\n\r\n") == b""


def test_a_client_that_drips_its_request_delays_nobody_for_long(tmp_path, monkeypatch):
    """Fails if a client that sends a byte now and then keeps Prometheus waiting."""
    monkeypatch.setattr(metrics_server, "_PATIENCE_S", 0.3)
    path = tmp_path / "m.sock"
    server = MetricsServer(unix_listener(path), lambda: "metric 1\n")
    ended = threading.Event()

    def drip():
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.connect(str(path))
            dripping.set()
            while not ended.wait(0.05):
                connection.send(b"G")

    dripping, thread = threading.Event(), threading.Thread(target=drip)
    thread.start()
    assert dripping.wait(60)
    began = time.monotonic()
    assert b"metric 1" in ask(path, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert time.monotonic() - began < 5
    ended.set()
    thread.join()
    server.stop()
