"""How a request reaches many processes of this host at once."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .messages import MOST_BYTES, MessageError, Reply, decode_reply, encode_request
from .server import peer_of

TIMEOUT_S = 5.0
_MOST_THREADS = 64
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

    Nobody listens on them; the process id alone would not tell, as it may be of
    another container.

    Raises:
        OSError: One cannot be removed.
    """
    for endpoint in endpoints_in(directory):
        if endpoint.rank != rank:
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as probe:
            probe.settimeout(0.0)
            try:
                probe.connect(os.fspath(endpoint.path))
            except ConnectionRefusedError:
                endpoint.path.unlink(missing_ok=True)
            except OSError:
                continue


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
