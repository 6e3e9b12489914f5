"""The datagrams between Kineto's daemon client and us, and the socket that answers them.

The client in every torch process sends a request of its process ids every five seconds
and takes the text of a configuration as the reply (libkineto, ``IpcFabricConfigClient``
and ``ipcfabric/FabricManager.h``). A message is a size of 8 bytes, a type of 32 bytes
and the body. With ``KINETO_IPC_SOCKET_DIR`` the sockets are files of that directory.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DAEMON_VARIABLE = "KINETO_USE_DAEMON"
DIRECTORY_VARIABLE = "KINETO_IPC_SOCKET_DIR"
LOG_VARIABLE = "KINETO_LOG_LEVEL"
SILENT = "99"
ENDPOINT = "dynolog"
"""The name that the client sends to; it cannot be changed."""
_CLIENT = "dynoconfigclient"
"""How the names of the clients' sockets begin."""
POLL_S = 5.0
"""How often a client asks."""

_HEAD = struct.Struct("=Q32s")
_REQUEST = struct.Struct("=iiq")
_COUNT = struct.Struct("=i")
_CREDENTIALS = struct.Struct("=3i")
_MOST_BYTES = 4096
_MOST_PIDS = 64
_ACTIVITIES = 2
"""Bit of a request that asks for a configuration of activities."""
_BACKLOG_S = 1.0
"""How late the thread sees that it is to end."""


class Request(NamedTuple):
    """A client asks whether there is something to record."""

    pids: tuple[int, ...]
    """Its process and the ancestors of it, its own first."""
    wants_activities: bool
    """False while it records already."""


def decode_request(packet: bytes) -> Request | None:
    """Return the request in a datagram, None for one of another type or a damaged one."""
    if _kind(packet) != b"req":
        return None
    size, _ = _HEAD.unpack_from(packet)
    body = packet[_HEAD.size :]
    if size != len(body) or size < _REQUEST.size:
        return None
    wanted, count, _job = _REQUEST.unpack_from(body)
    if not 1 <= count <= _MOST_PIDS or len(body) < _REQUEST.size + 4 * count:
        return None
    pids = struct.unpack_from(f"={count}i", body, _REQUEST.size)
    return Request(pids, bool(wanted & _ACTIVITIES))


def _kind(packet: bytes) -> bytes:
    return bytes(_HEAD.unpack_from(packet)[1]).rstrip(b"\0") if len(packet) >= _HEAD.size else b""


def encode_reply(configuration: str) -> bytes:
    """Return the datagram that carries a configuration; an empty one asks for nothing."""
    body = configuration.encode()
    return _HEAD.pack(len(body), b"req") + body


def configuration(path: Path, first_iteration: int, iterations: int) -> str:
    """Return what makes a client record some iterations and write them to a file.

    Args:
        path: The client adds its process id before the suffix.
        first_iteration: Steps that it has counted when it begins.
        iterations: How many it records.
    """
    return (
        f"ACTIVITIES_LOG_FILE={path}\n"
        f"PROFILE_START_ITERATION={first_iteration}\n"
        f"ACTIVITIES_ITERATIONS={iterations}\n"
        "PROFILE_REPORT_INPUT_SHAPES=true\n"
    )


class KinetoDaemon(threading.Thread):
    """Answers the clients of one run on one node.

    Only processes for which an order waits get a configuration, each once. Who sends is
    known from the credentials that the kernel attaches to each datagram, not from what
    the datagram claims; the directory admits nobody but this user.

    Attributes:
        refused: Datagrams that were damaged, or claimed the process of somebody else.
    """

    def __init__(self, directory: Path) -> None:
        """Bind the socket.

        Args:
            directory: Of mode 0700, ours.

        Raises:
            OSError: The socket cannot be made; another daemon may have it.
        """
        super().__init__(name="meshscope-kineto", daemon=True)
        self.refused = 0
        self._path = directory / ENDPOINT
        self._orders: dict[int, tuple[str, str]] = {}
        self._seen: set[int] = set()
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._bind()
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.settimeout(_BACKLOG_S)
        except OSError:
            self._socket.close()
            raise
        self._closing = False

    def order(self, pid: int, text: str, ticket: str = "") -> None:
        """Have the client of a process take a configuration when it asks the next time.

        Args:
            pid: The process.
            text: The configuration.
            ticket: Names the request, so that it can be cancelled.
        """
        with self._lock:
            self._orders[pid] = (ticket, text)

    def cancel(self, ticket: str = "") -> list[int]:
        """Forget the orders of a request, or all, and return the processes that had one.

        A client that has taken its order keeps to it.
        """
        with self._lock:
            found = [pid for pid, (named, _) in self._orders.items() if ticket in ("", named)]
            for pid in found:
                del self._orders[pid]
        return sorted(found)

    def clients(self) -> list[int]:
        """Return the processes whose clients have asked."""
        return sorted(self._seen)

    def run(self) -> None:
        """Answer until ``stop``."""
        while not self._closing:
            try:
                packet, ancillary, _, sender = self._socket.recvmsg(
                    _MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except TimeoutError:
                continue
            except OSError:
                return
            if not self._closing:
                self._answer(packet, _sender(ancillary), sender)

    def stop(self) -> None:
        """Cease to answer; remove the socket, those of dead clients, and the directory if it is empty."""
        self._closing = True
        with suppress(OSError):
            # Wakes the thread that waits for a datagram.
            self._socket.shutdown(socket.SHUT_RD)
        self.join(2 * _BACKLOG_S)
        self._socket.close()
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            # A client removes its socket only where its process ends in order.
            for path in self._path.parent.glob(f"{_CLIENT}*"):
                if not _is_served(path):
                    path.unlink(missing_ok=True)
            self._path.parent.rmdir()

    def _answer(self, packet: bytes, sender_pid: int, address: object) -> None:
        if sender_pid >= 0 and _kind(packet) == b"ctxt":
            self._send(_HEAD.pack(_COUNT.size, b"ctxt") + _COUNT.pack(1), address)
            return
        request = decode_request(packet)
        if request is None or request.pids[0] != sender_pid:
            self.refused += 1
            return
        pid = request.pids[0]
        self._seen.add(pid)
        with self._lock:
            text = self._orders.get(pid, ("", ""))[1] if request.wants_activities else ""
            if self._send(encode_reply(text), address) and text:
                # Else the client is gone or does not read: the order waits for it to come back.
                del self._orders[pid]

    def _send(self, packet: bytes, address: object) -> bool:
        if not isinstance(address, str) or not address:
            return False
        try:
            self._socket.sendto(packet, socket.MSG_DONTWAIT, address)
        except OSError:
            return False
        return True

    def _bind(self) -> None:
        """Bind the path; one that a dead daemon left behind is replaced."""
        try:
            self._socket.bind(os.fspath(self._path))
        except OSError:
            if _is_served(self._path):
                raise
            self._path.unlink(missing_ok=True)
            self._socket.bind(os.fspath(self._path))
        os.chmod(self._path, 0o600)


def _is_served(path: Path) -> bool:
    """Tell whether a process has this socket open."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the process id that the kernel states for a datagram, -1 for another user's."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid, uid, _ = _CREDENTIALS.unpack_from(data)
            return pid if uid in (0, os.geteuid()) else -1
    return -1
