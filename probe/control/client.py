"""How a request reaches many processes of this host at once."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..clock import unix_ns
from .messages import MOST_BYTES, MessageError, Reply, decode_reply, encode_request
from .server import peer_of

TIMEOUT_S = 5.0
_MOST_THREADS = 64
_YOUNG_NS = 1_000_000_000
"""A rank listens at its socket within this time of making it."""
_RANK_SOCKET = re.compile(r"rank(\d{1,9})\.(\d{1,9})\.sock")


class Endpoint(NamedTuple):
    """A socket of a rank."""

    rank: int
    pid: int
    path: Path


class Answer(NamedTuple):
    """What came back from one socket."""

    endpoint: Endpoint
    reply: Reply | None
    """None when it did not answer."""
    silence: str
    """Why it did not answer; else empty."""


def endpoints_in(directory: Path) -> list[Endpoint]:
    """Return the sockets of ranks in a directory by rank and process."""
    return sorted(filter(None, map(endpoint_at, directory.iterdir())))


def endpoint_at(path: Path) -> Endpoint | None:
    """Return the socket of a rank that is called so; None if none would be."""
    match = _RANK_SOCKET.fullmatch(path.name)
    return Endpoint(int(match[1]), int(match[2]), path) if match else None


def remove_dead(directory: Path, rank: int) -> None:
    """Remove the sockets that killed processes of a rank have left behind.

    Raises:
        OSError: One cannot be removed.
    """
    for endpoint in endpoints_in(directory):
        if endpoint.rank == rank:
            remove_if_dead(endpoint)


def remove_left_behind(directory: Path) -> None:
    """Remove the sockets of every rank whose process is not here and which nobody serves.

    A young socket stays: its process may be of another container, and about to listen.

    Raises:
        OSError: The directory cannot be read, or one cannot be removed.
    """
    oldest_ns = unix_ns() - _YOUNG_NS
    for endpoint in endpoints_in(directory):
        if Path(f"/proc/{endpoint.pid}").exists():
            continue
        with suppress(FileNotFoundError):
            found = endpoint.path.lstat()
            if stat.S_ISSOCK(found.st_mode) and found.st_ctime_ns < oldest_ns:
                remove_if_dead(endpoint)


def remove_if_dead(endpoint: Endpoint) -> None:
    """Remove a socket on which nobody listens: the process id may be of another container."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(os.fspath(endpoint.path))
        except ConnectionRefusedError:
            endpoint.path.unlink(missing_ok=True)
        except OSError:
            return


def ask(path: Path, verb: str, fields: Mapping[str, object], timeout_s: float = TIMEOUT_S) -> Reply:
    """Send one request to one socket and return the reply.

    Raises:
        OSError: Nobody listens, the other end belongs to another user, or no
            reply came in time.
        MessageError: The request is too long, or the reply is none.
    """
    packet = encode_request(verb, fields)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
        if peer_of(connection).uid not in (0, os.geteuid(), path.lstat().st_uid):
            raise PermissionError(1, "the socket is served by another user", str(path))
        connection.send(packet)
        answer = connection.recv(MOST_BYTES)
        if not answer:
            raise ConnectionResetError(104, "the process closed the connection", str(path))
        return decode_reply(answer)


def ask_all(
    endpoints: Iterable[Endpoint],
    verb: str,
    fields: Mapping[str, object],
    timeout_s: float = TIMEOUT_S,
) -> list[Answer]:
    """Send one request to many sockets at once; return one answer for each, in order.

    A process that does not answer delays nobody else.
    """
    asked = list(endpoints)
    if not asked:
        return []

    def one(endpoint: Endpoint) -> Answer:
        try:
            return Answer(endpoint, ask(endpoint.path, verb, fields, timeout_s), "")
        except TimeoutError:
            return Answer(endpoint, None, f"no answer within {timeout_s:g} s")
        except ConnectionRefusedError:
            return Answer(endpoint, None, f"process {endpoint.pid} no longer listens")
        except FileNotFoundError:
            return Answer(endpoint, None, f"process {endpoint.pid} has closed its socket")
        except OSError as error:
            return Answer(endpoint, None, error.strerror or str(error))
        except MessageError as error:
            return Answer(endpoint, None, str(error))

    with ThreadPoolExecutor(min(len(asked), _MOST_THREADS)) as pool:
        return list(pool.map(one, asked))
