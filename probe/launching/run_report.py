"""What ``meshscope run`` says when the command has ended: which ranks recorded, and how they ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from typing import Any

from ..recording.rank_manifest import boot_id
from ..schema.errors import RunDirectoryError
from ..schema.manifest import ENDED_NAME, MANIFEST_NAME, rank_directories, read_json
from ..schema.printable import listed
from .run_place import RunPlace

_UNKNOWN_END = "killed, or ended by os._exit,"
_NO_STATUS = 1 << 16
"""A status of ``wait`` is less."""


def report(place: RunPlace, *, is_dormant: bool) -> list[str]:
    """Return one clause a line about the ranks that this launch has started.

    Raises:
        OSError: The run directory cannot be read.
    """
    new = {
        rank: _manifest(path)
        for rank, path in rank_directories(place.path).items()
        if path not in place.before
    }
    here = {rank: manifest for rank, manifest in new.items() if _is_of_this_host(manifest)}
    plural = "" if len(here) == 1 else "s"
    others = " of this host" if len(here) < len(new) else ""
    said = [f"{len(here)} rank{plural}{others} recorded in {place.path}"]
    if not here and not is_dormant:
        said.append(
            "no process was a rank, unless one said why it is not recorded: none that imported torch had RANK set, none joined a process "
            "group, and none took a step of a torch optimizer. What trains without one calls "
            "meshscope.probe.attach() and meshscope.probe.step()"
        )
    paths = rank_directories(place.path)
    ends: dict[str, list[int]] = {}
    for rank, manifest in here.items():
        if _ended_open(manifest):
            ends.setdefault(_end(paths[rank]), []).append(rank)
    for how, ranks in sorted(ends.items()):
        said.append(
            f"{how} before they closed their capture: ranks {listed(ranks, most=16)}; "
            "what they recorded is kept"
        )
    return said


def _end(rank_path: Path) -> str:
    """Return how a process ended, in words, as far as its launch saw it."""
    try:
        status = read_json(rank_path / ENDED_NAME).get("wait_status")
    except RunDirectoryError:
        status = None
    if type(status) is not int or not 0 <= status < _NO_STATUS:
        return _UNKNOWN_END
    try:
        code = os.waitstatus_to_exitcode(status)
    except ValueError:  # that of a process that was stopped
        return _UNKNOWN_END
    if code >= 0:
        return (
            "ended in order, with exit code 0, but" if code == 0 else f"ended with exit code {code}"
        )
    try:
        return f"killed by {Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _manifest(rank_path: Path) -> Mapping[str, Any]:
    try:
        return read_json(rank_path / MANIFEST_NAME)
    except RunDirectoryError:
        return {}


def _is_of_this_host(manifest: Mapping[str, Any]) -> bool:
    """Tell whether a rank ran on this machine; one that does not say so is taken for ours."""
    boot, host = manifest.get("boot_id"), manifest.get("host")
    return boot in (None, boot_id()) and host in (None, os.uname().nodename)


def _ended_open(manifest: Mapping[str, Any]) -> bool:
    """Tell whether a rank has ended without closing; another launcher's may still be running."""
    if manifest.get("closed_unix_ns") is not None:
        return False
    pid = manifest.get("pid")
    return type(pid) is not int or not Path(f"/proc/{pid}").exists()
