"""The thread that waits on a control socket, answers one request a connection and notes it."""

from __future__ import annotations

import os
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..clock import unix_ns
from ..safety.threads import start_deaf
from ..schema.errors import ConfigError
from ..schema.message import message
from ..schema.reading import OwnDescriptor
from .directory import MOST_PATH_BYTES, check_private
from .messages import MOST_BYTES, MessageError, decode_request, encode_error, encode_result
from .verbs import Refusal, VerbRegistry

_KEPT = 256
_OUTCOME_CHARACTERS = 120
"""A noisy client can take no more memory than so."""


class RequestLog:
    """The newest requests, oldest first, and how many there were.

    Attributes:
        count: All requests so far.
        errors: Requests in which the probe itself failed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.errors = 0
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._listener: Callable[[RequestLog], None] | None = None

    def tell(self, listener: Callable[[RequestLog], None] | None) -> None:
        """Call a function after each request; None ends that."""
        self._listener = listener

    def add(self, verb: str, uid: int, pid: int, outcome: str) -> None:
        """Note a request.

        Args:
            verb: Its verb, ``?`` for one that does not exist.
            uid: User who asked.
            pid: Process that asked.
            outcome: What became of it, one clause.
        """
        self.count += 1
        self._kept.append(
            {
                "unix_ns": unix_ns(),
                "verb": verb,
                "uid": uid,
                "pid": pid,
                "outcome": outcome[:_OUTCOME_CHARACTERS],
            }
        )
        if self._listener is not None:
            self._listener(self)

    def failed(self, _error: BaseException) -> None:
        """Count an error of the probe."""
        self.errors += 1

    def to_json(self) -> list[dict[str, Any]]:
        """Return the newest requests, at most 256."""
        return list(self._kept)


_PATIENCE_S = 2.0
"""How long a client may take to send its request or to read the reply."""
_PATIENCE_WITH_STRANGERS_S = 0.2
"""They are refused whatever they ask: only their packet is taken from the queue."""
_BACKLOG = 16
"""Clients that may wait: one for each process of a node that asks at once."""
_STOP_TIMEOUT_S = 5.0
"""As long as one client may take; the training must end."""
_CREDENTIALS = struct.Struct("iII")


class Peer(NamedTuple):
    """Who is at the other end of a connection, by the kernel's word."""

    pid: int
    uid: int


class ControlServer:
    """Serves the verbs of a registry on one socket until it is stopped.

    While nobody asks, its thread is blocked in the kernel and costs nothing. A
    forked child closes the socket and serves nothing.

    Attributes:
        path: The socket.
        registry: What can be asked for.
        log: The requests so far.
    """

    def __init__(self, path: Path, registry: VerbRegistry, log: RequestLog) -> None:
        """Prepare; ``start`` makes the socket.

        Args:
            path: In a directory that is private (``directory.make_directory``).
            registry: The verbs, which may change while it serves.
            log: Told about each request.
        """
        self.path = path
        self.registry = registry
        self.log = log
        self._listening: socket.socket | None = None
        self._own = OwnDescriptor(-1)
        self._serving: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self) -> None:
        """Make the socket and wait on it in a thread of its own.

        Raises:
            ConfigError: The directory is not private, or the path too long.
            OSError: The socket cannot be made.
            RuntimeError: The system has no thread to give.
        """
        check_private(self.path.parent)
        if len(os.fsencode(self.path)) > MOST_PATH_BYTES:
            raise ConfigError(message("refused.socket_path_too_long"), where=str(self.path))
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            listening.bind(os.fspath(self.path))
            self.path.chmod(0o600)
            listening.listen(_BACKLOG)
            self._listening, self._own = listening, OwnDescriptor(listening.fileno())
            self._ending = threading.Event()
            self._thread = threading.Thread(
                target=self._serve,
                args=(listening, self._ending),
                name="meshscope-control",
                daemon=True,
            )
            start_deaf(self._thread)
        except BaseException:
            self._listening = self._thread = None
            listening.close()
            self.path.unlink(missing_ok=True)
            raise
        _SERVERS.add(self)

    def stop(self) -> None:
        """Remove the socket and end the thread; a verb in progress is waited for.

        Called by a verb, on the control thread itself, it only asks for the end:
        the reply is still sent.
        """
        listening, self._listening = self._listening, None
        if listening is None:
            return
        _SERVERS.discard(self)
        self.path.unlink(missing_ok=True)
        thread, self._thread = self._thread, None
        if self._own.is_open:
            with suppress(OSError):  # its thread has seen the end already
                listening.shutdown(socket.SHUT_RDWR)
        elif not self._ending.is_set():
            return  # Nothing wakes the thread, which waits at a socket that has no number any more.
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_TIMEOUT_S)

    def abandon(self) -> None:
        """Close the sockets in a forked child, which has no control thread; unlink nothing."""
        if self._listening is not None:
            _close(self._listening, self._own)
        if self._serving is not None:
            self._serving.close()
        self._listening = self._serving = self._thread = None

    def _serve(self, listening: socket.socket, ending: threading.Event) -> None:
        own = self._own
        try:
            while self._listening is listening and own.is_open:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    if self._listening is not listening:
                        return
                    # Out of descriptors: a pause, as accept would fail again at once.
                    threading.Event().wait(1.0)
                    continue
                self._serving = connection
                try:
                    self._answer(connection)
                except Exception as error:  # noqa: BLE001 - the client has gone, or we erred: counted
                    self.log.failed(error)
                finally:
                    self._serving = None
                    connection.close()
        finally:
            ending.set()  # Before its number is gone, which else looks as if the program had closed it.
            _close(listening, own)

    def _answer(self, connection: socket.socket) -> None:
        peer = peer_of(connection)
        if peer.uid not in (0, os.geteuid()):
            self.log.add("?", peer.uid, peer.pid, "refused: another user")
            # Taken off the queue unread: closing over it would lose the answer.
            connection.settimeout(_PATIENCE_WITH_STRANGERS_S)
            connection.recv(1)
            connection.send(encode_error(message("reply.other_user")))
            return
        connection.settimeout(_PATIENCE_S)
        packet, _, flags, _ = connection.recvmsg(MOST_BYTES)
        if not packet:
            return
        verb = "?"
        try:
            if flags & socket.MSG_TRUNC:
                raise MessageError(message("reply.too_long", most=MOST_BYTES))
            request = decode_request(packet)
            verb = request.verb if request.verb in self.registry.names() else "?"
            reply, outcome = encode_result(self.registry.call(request)), "done"
        except (MessageError, Refusal) as refusal:
            reply, outcome = encode_error(refusal.said), f"refused: {refusal}"
        except Exception as error:  # noqa: BLE001 - answered and counted; training goes on
            self.log.failed(error)
            failed = message("reply.failed", kind=type(error).__name__, error=str(error))
            reply, outcome = encode_error(failed), str(failed)
        self.log.add(verb, peer.uid, peer.pid, outcome)
        connection.send(reply)


def _close(listening: socket.socket, own: OwnDescriptor) -> None:
    """Close a socket, or forget its number where that stands for something of the program."""
    if own.is_open:
        listening.close()
    else:
        listening.detach()


def peer_of(connection: socket.socket) -> Peer:
    """Return who connected a Unix socket.

    Raises:
        OSError: The kernel does not tell.
    """
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return Peer(pid, uid)


_SERVERS: weakref.WeakSet[ControlServer] = weakref.WeakSet()


def _abandon_all() -> None:
    for server in list(_SERVERS):
        server.abandon()
    _SERVERS.clear()


os.register_at_fork(after_in_child=_abandon_all)
