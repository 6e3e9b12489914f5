"""What ``meshscope run`` says when the command has ended: which ranks recorded, and how they ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..recording.rank_manifest import boot_id
from ..schema.errors import RunDirectoryError
from ..schema.listing import listed
from ..schema.manifest import MANIFEST_NAME, rank_directories, read_json
from .run_place import RunPlace


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
    if unfinished := [rank for rank, manifest in here.items() if _was_killed(manifest)]:
        said.append(
            "killed, or ended by os._exit, before they closed their capture: ranks "
            f"{listed(unfinished, most=16)}; what they recorded is kept"
        )
    return said


def _manifest(rank_path: Path) -> Mapping[str, Any]:
    try:
        return read_json(rank_path / MANIFEST_NAME)
    except RunDirectoryError:
        return {}


def _is_of_this_host(manifest: Mapping[str, Any]) -> bool:
    """Tell whether a rank ran on this machine; one that does not say so is taken for ours."""
    boot, host = manifest.get("boot_id"), manifest.get("host")
    return boot in (None, boot_id()) and host in (None, os.uname().nodename)


def _was_killed(manifest: Mapping[str, Any]) -> bool:
    """Tell whether a rank has ended without closing; another launcher's may still be running."""
    if manifest.get("closed_unix_ns") is not None:
        return False
    pid = manifest.get("pid")
    return type(pid) is not int or not Path(f"/proc/{pid}").exists()
