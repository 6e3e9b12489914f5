"""Serves one text over HTTP: on a Unix socket in a private directory, or on loopback.

It answers ``GET /metrics`` and nothing else, reads at most a few kilobytes of a request,
has two seconds for each connection, however its client talks, and never listens to another machine.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..clock import now_ns
from ..control.server import peer_of
from ..schema.errors import ConfigError
from ..schema.message import message
from .metrics import CONTENT_TYPE

LOOPBACK = "127.0.0.1"
_MOST_REQUEST_BYTES = 8192
"""The limit of common servers: a scraper sends some hundred."""
_PATIENCE_S = 2.0
"""For one request: a scraper is on the network of the cluster, and one thread serves all."""
_BACKLOG = 8
"""Scrapers that may wait: one or two ask every 15 s."""


class MetricsServer:
    """One listening socket and the thread that serves it."""

    def __init__(self, listening: socket.socket, text: Callable[[], str]) -> None:
        """Serve from now on until ``stop``.

        Args:
            listening: A bound socket.
            text: Returns the text; called on the server's thread.
        """
        self._listening: socket.socket | None = listening
        # Asked now: the thread may have closed the socket by the time of ``stop``.
        self._path = listening.getsockname() if listening.family == socket.AF_UNIX else None
        self._text = text
        listening.listen(_BACKLOG)
        self._thread = threading.Thread(
            target=self._serve, args=(listening,), name="meshscope-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the socket."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        if self._path is not None:
            Path(self._path).unlink(missing_ok=True)
        with suppress(OSError):  # its thread has seen the end already
            listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(2 * _PATIENCE_S)

    def _serve(self, listening: socket.socket) -> None:
        with listening:
            while self._listening is listening:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    # Stopped, or out of descriptors: then a pause, as it would fail again.
                    threading.Event().wait(0 if self._listening is None else 1.0)
                    continue
                with connection:
                    try:
                        if not _is_ours(connection):
                            continue
                        deadline_ns = now_ns() + round(_PATIENCE_S * 1e9)
                        answer = self._answer(_request(connection, deadline_ns))
                        _leave_until(connection, deadline_ns)
                        connection.sendall(answer)
                    except OSError:
                        continue  # The client has gone.

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response("400 Bad Request", "this is HTTP: GET /metrics\n")
        if words[1].split(b"?")[0] != b"/metrics":
            return _response("404 Not Found", "only /metrics is here\n")
        if words[0] != b"GET":
            return _response("405 Method Not Allowed", "only GET\n")
        try:
            return _response("200 OK", self._text())
        except Exception as error:  # noqa: BLE001 - told to who asked; the next one is served
            return _response("500 Internal Server Error", f"{type(error).__name__}: {error}\n")


def _is_ours(connection: socket.socket) -> bool:
    """Tell whether this user or root is at the other end; loopback does not say who is."""
    return connection.family != socket.AF_UNIX or peer_of(connection).uid in (0, os.geteuid())


def unix_listener(path: Path) -> socket.socket:
    """Return a socket in a directory that is private.

    Raises:
        OSError: It cannot be made.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        listening.bind(os.fspath(path))
        path.chmod(0o600)
    except OSError:
        listening.close()
        raise
    return listening


def loopback_listener(port: int) -> socket.socket:
    """Return a socket that only this machine can reach.

    Raises:
        ConfigError: The port is taken or not allowed.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        listening.close()
        reason = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise ConfigError(
            message("refused.not_served", reason=reason),
            where=f"port {port}",
            remedy=message("advice.other_port"),
        ) from error
    return listening


def _leave_until(connection: socket.socket, deadline_ns: int) -> None:
    """Have the next call on a connection end in time.

    Raises:
        TimeoutError: The time is over.
    """
    left_s = (deadline_ns - now_ns()) / 1e9
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)


def _request(connection: socket.socket, deadline_ns: int) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found and len(found) < _MOST_REQUEST_BYTES:
        _leave_until(connection, deadline_ns)
        part = connection.recv(4096)
        if not part:
            break
        found += part
    return found


def _response(status: str, text: str) -> bytes:
    body = text.encode(errors="replace")
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
