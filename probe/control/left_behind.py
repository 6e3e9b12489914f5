"""Takes away what ranks of a run that were killed left of their control sockets, once their job has ended."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..schema.errors import ConfigError
from .client import endpoint_at, remove_if_dead
from .directory import FOLDER, Pointer, boot_id, check_trusted, pointers_by_path
from .finding import is_alive


def remove_of_killed_ranks(run_path: Path) -> None:
    """Remove sockets, their folders and the notes of them, of processes of this host that are gone."""
    here = (os.uname().nodename, boot_id())
    for path, pointer in pointers_by_path(run_path).items():
        if (pointer.host, pointer.boot_id) != here or is_alive(pointer.pid):
            continue
        with suppress(OSError, ConfigError):
            _remove_socket(pointer)
        with suppress(OSError):
            path.unlink()
    with suppress(OSError):
        (run_path / FOLDER).rmdir()


def _remove_socket(pointer: Pointer) -> None:
    """Remove the socket that a note names, if it lies where those of ranks do.

    Raises:
        ConfigError: Others may write there.
        OSError: It cannot be removed.
    """
    folder = pointer.socket.parent
    check_trusted(folder)
    endpoint = endpoint_at(pointer.socket)
    if endpoint is not None and endpoint.pid == pointer.pid and pointer.socket.is_socket():
        remove_if_dead(endpoint)
    # Only where no other rank has its socket there.
    folder.rmdir()
