"""Notes when and how the process of a rank ended, for whoever sees it: its launcher, or another rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..recording.rank_manifest import boot_id
from ..schema.manifest import ENDED_NAME, write_json
from ..schema.tables import FORMAT_VERSION

_EXIT_CODE = 48
"""Place of the exit status among the fields of ``/proc/PID/stat`` that come after the state."""


def is_of_this_host(manifest: Mapping[str, Any]) -> bool:
    """Return whether the process of a rank's manifest is, or was, one of this host and boot."""
    return manifest.get("host") == os.uname().nodename and manifest.get("boot_id") == boot_id()


def wait_status(pid: int) -> int | None:
    """Return what ``wait`` will tell the parent of a process; None once it has been told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
        # The name of the program stands in brackets, and may hold anything.
        state, *fields = text.rpartition(")")[2].split()
        return int(fields[_EXIT_CODE]) if state == "Z" else None
    except (OSError, ValueError, IndexError):
        return None


def note_end(directory: Path, ended_ns: int, status: int | None) -> None:
    """Write down when and how a rank ended; without room on the disk, nothing."""
    noted = {"format_version": FORMAT_VERSION, "ended_ns": ended_ns, "wait_status": status}
    with suppress(OSError):
        write_json(directory / ENDED_NAME, noted)


def note_end_once(directory: Path, ended_ns: int, status: int | None) -> None:
    """Write the same down, unless somebody has done so."""
    if not os.path.lexists(directory / ENDED_NAME):
        note_end(directory, ended_ns, status)
