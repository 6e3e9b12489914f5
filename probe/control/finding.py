"""Which sockets a run or a process has on this host, and which ranks are elsewhere."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..clock import now_ns
from ..schema.errors import ConfigError, MeshscopeError
from ..schema.manifest import MANIFEST_NAME, read_json
from ..schema.message import message
from .client import Endpoint, endpoint_at, endpoints_in, remove_if_dead, remove_left_behind
from .directory import (
    Pointer,
    boot_id,
    check_trusted,
    existing_directories,
    read_pointers,
    run_name,
)

_POLL_S = 0.01
"""Short beside a start of Python, long beside a look at a folder."""


@dataclass(slots=True)
class FoundRanks:
    """The ranks of a run as seen from this host."""

    here: list[Endpoint] = field(default_factory=list)
    """Sockets that can be asked, by rank and process."""
    elsewhere: dict[str, list[int]] = field(default_factory=dict)
    """Ranks whose sockets are on another host or in another container, by its name."""
    refused: dict[int, str] = field(default_factory=dict)
    """Ranks whose socket is not to be trusted, with the reason."""
    unknown: list[int] = field(default_factory=list)
    """Ranks of the job that have left no socket and no note of one."""


def ranks_of_run(run_path: Path, environment: Mapping[str, str]) -> FoundRanks:
    """Return the ranks of a run; the sockets that killed ranks of any run left are removed.

    Raises:
        ConfigError: The path is no run directory and no run of its name has sockets here.
        RunDirectoryError: No rank of it is found, and its manifest cannot be read.
    """
    found = FoundRanks()
    known: set[Endpoint] = set()
    for directory in existing_directories(environment):
        with suppress(OSError):
            remove_left_behind(directory)
        if directory.name == run_name(run_path):
            known.update(endpoints_in(directory))
    for pointer in read_pointers(run_path):
        _follow(pointer, known, found)
    found.here = sorted(known)
    present = {endpoint.rank for endpoint in known} | found.refused.keys()
    present.update(*found.elsewhere.values())
    try:
        world_size = _world_size(run_path)
    except MeshscopeError:
        if not present:
            raise
        world_size = 0
    found.unknown = [rank for rank in range(world_size) if rank not in present]
    return found


def socket_of_process(pid: int, environment: Mapping[str, str]) -> Endpoint | None:
    """Return the control socket of a process of this host, None if it has none."""
    for directory in existing_directories(environment):
        for endpoint in endpoints_in(directory):
            if endpoint.pid == pid:
                return endpoint
    run_dir = _variables_of(pid).get("MESHSCOPE_RUN_DIR")
    known: set[Endpoint] = set()
    for pointer in read_pointers(Path(run_dir)) if run_dir else ():
        if pointer.pid == pid:
            _follow(pointer, known, FoundRanks())
    return next(iter(known), None) or _socket_that_listens(pid)


def owner_of_process(pid: int) -> int | None:
    """Return the user whose rights a process has, None if that is not known."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^Uid:\s+\d+\s+(\d+)", status, re.MULTILINE)
    return int(found[1]) if found else None


def python_of_process(pid: int) -> str:
    """Return the version of Python that a process runs, as in 3.14; empty if not known."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # Of the program itself or of its library; packages lie in folders of that name.
    found = re.search(r"/(?:lib)?python(3\.\d+)t?d?(?:\.so[.\d]*)?$", maps, re.MULTILINE)
    return found[1] if found else ""


def is_alive(pid: int) -> bool:
    """Tell whether a process of this id runs on this host; one that has ended does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])


def has_ended(pid: int, within_s: float = 0.5) -> bool:
    """Tell whether a process ends by then: one that was killed closes its sockets some time before."""
    deadline_ns = now_ns() + int(within_s * 1e9)
    while is_alive(pid):
        if now_ns() >= deadline_ns:
            return False
        threading.Event().wait(_POLL_S)
    return True


def remove_of_ended(pid: int, environment: Mapping[str, str], *known: Endpoint) -> None:
    """Remove the sockets that a process has left which has ended, and folders that held no others.

    Args:
        pid: The process.
        environment: Variables of this process, which say where sockets may lie.
        known: Sockets of it that may lie elsewhere.
    """
    folders = [*existing_directories(environment), *(one.path.parent for one in known)]
    for folder in dict.fromkeys(folders):
        with suppress(OSError):
            left = [one for one in endpoints_in(folder) if one.pid == pid]
            for one in left:
                remove_if_dead(one)
            if left:
                folder.rmdir()


def _socket_that_listens(pid: int) -> Endpoint | None:
    """Return the socket of a process whose variables put it where we would not look.

    A shell of ssh and a job of a batch system seldom have the same runtime directory.
    """
    try:
        sockets = Path(f"/proc/{pid}/net/unix").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in sockets.splitlines():
        path = Path(line.split(maxsplit=7)[-1])
        endpoint = endpoint_at(path)
        if endpoint is None or endpoint.pid != pid:
            continue
        with suppress(ConfigError):
            check_trusted(path.parent)
            return endpoint
    return None


def _follow(pointer: Pointer, known: set[Endpoint], found: FoundRanks) -> None:
    """Add the socket of a note to those here, or say why it cannot be asked from here."""
    endpoint = Endpoint(pointer.rank, pointer.pid, pointer.socket)
    if pointer.boot_id != boot_id():
        found.elsewhere.setdefault(pointer.host, []).append(pointer.rank)
    elif not pointer.socket.exists():
        if is_alive(pointer.pid) or pointer.host != os.uname().nodename:
            found.elsewhere.setdefault(pointer.host, []).append(pointer.rank)
    else:
        try:
            check_trusted(pointer.socket.parent)
            known.add(endpoint)
        except ConfigError as error:
            found.refused[pointer.rank] = str(error)


def _world_size(run_path: Path) -> int:
    """Return how many ranks a run says it has, 0 if it does not."""
    manifest = run_path / MANIFEST_NAME
    if not os.path.lexists(manifest):
        raise ConfigError(
            message("refused.no_run_with_ranks"),
            where=str(run_path),
            remedy=message("advice.directory_of_run"),
        )
    size = read_json(manifest).get("world_size")
    return size if isinstance(size, int) and 0 <= size < 1 << 20 else 0


def _variables_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with, {} where it may not be read."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in content.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
